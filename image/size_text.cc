#include "image/size_text.h"

#include <fmt/format.h>

namespace spindle::image {
namespace {

constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
constexpr unsigned kLargestUnit = 6;

}  // namespace

std::string size_text(uint64_t bytes) {
  unsigned unit = 0;
  double scaled = static_cast<double>(bytes);
  while (scaled >= 1000 && unit < kLargestUnit) {
    scaled /= 1024;
    ++unit;
  }
  return fmt::format("{:.3g} {}", scaled, kUnits[unit]);
}

std::string quantity_text(double bytes) {
  unsigned unit = 0;
  while (bytes >= 1024 && unit < kLargestUnit) {
    bytes /= 1024;
    ++unit;
  }
  std::string digits = fmt::format("{:.3f}", bytes);
  if (digits.ends_with(".000")) digits.resize(digits.size() - 4);
  return digits + " " + (unit == 0 ? "bytes" : kUnits[unit]);
}

}  // namespace spindle::image
