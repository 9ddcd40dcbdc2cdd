#include "block/parse.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

namespace spindle {
namespace {

constexpr uint64_t kLargestOffset = std::numeric_limits<int64_t>::max();

// The power of two a suffix stands for, or nullopt.
std::optional<unsigned> shift_of(char suffix) {
  switch (suffix) {
    case 'b':
    case 'B':
      return 0;
    case 'k':
    case 'K':
      return 10;
    case 'm':
    case 'M':
      return 20;
    case 'g':
    case 'G':
      return 30;
    case 't':
    case 'T':
      return 40;
    case 'p':
    case 'P':
      return 50;
    case 'e':
    case 'E':
      return 60;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<uint64_t> parse_number(std::string_view text) {
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0X")) {
    text.remove_prefix(2);
    base = 16;
  }
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, base);
  if (text.empty() || error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::optional<uint64_t> parse_size(std::string_view text) {
  if (text.empty()) return std::nullopt;
  unsigned shift = 0;
  const bool hex = text.starts_with("0x") || text.starts_with("0X");  // where b and e are digits
  if (!hex) {
    if (const auto suffix = shift_of(text.back())) {
      shift = *suffix;
      text.remove_suffix(1);
    }
  }
  std::string_view fraction;
  if (const auto dot = text.find('.'); dot != text.npos) {
    fraction = text.substr(dot + 1);
    text = text.substr(0, dot);
    if (fraction.empty() || fraction.size() > 18 || shift == 0) return std::nullopt;
  }
  const auto whole = parse_number(text);
  if (!whole || *whole > (kLargestOffset >> shift)) return std::nullopt;
  uint64_t bytes = *whole << shift;
  if (!fraction.empty()) {
    uint64_t scale = 1;
    unsigned __int128 numerator = 0;
    for (const char digit : fraction) {
      if (digit < '0' || digit > '9') return std::nullopt;
      numerator = numerator * 10 + static_cast<unsigned>(digit - '0');
      scale *= 10;
    }
    bytes += static_cast<uint64_t>(((numerator << shift) + scale / 2) / scale);
    if (bytes > kLargestOffset) return std::nullopt;
  }
  return bytes;
}

std::optional<bool> parse_on_off(std::string_view text) {
  if (text == "on") return true;
  if (text == "off") return false;
  return std::nullopt;
}

std::string format_size(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  unsigned unit = 0;
  uint64_t scale = 1;
  while (unit < 6 && bytes / scale >= 1024) {
    scale *= 1024;
    ++unit;
  }
  if (bytes % scale == 0) return fmt::format("{} {}", bytes / scale, kUnits[unit]);
  return fmt::format("{:.1f} {}", static_cast<double>(bytes) / static_cast<double>(scale), kUnits[unit]);
}

}  // namespace spindle
