#include "tools/measure_formats.h"

#include <bit>
#include <utility>

#include "block/parse.h"
#include "formats/vdi/header.h"
#include "image/create.h"

namespace spindle::tools {
namespace {

using Clusters = std::function<uint64_t(uint64_t)>;

// qemu-img has the whole length for both, whatever the preallocation.
Result<Measure> measure_raw(const CreateOptions& options, const Clusters&) {
  const uint64_t size = image::to_sectors(options.size);
  return Measure{.required = size, .fully_allocated = size};
}

Result<Measure> measure_vdi(const CreateOptions& options, const Clusters& data_clusters) {
  uint64_t block = vdi::kDefaultBlock;
  auto type = vdi::ImageType::Dynamic;
  for (const auto& [key, value] : options.options) {
    if (key == "block_size") {
      const auto bytes = parse_size(value);
      if (!bytes || !std::has_single_bit(*bytes) || *bytes < vdi::kSmallestBlock ||
          *bytes > vdi::kLargestBlock)
        return std::unexpected(bad_option(key, value, "a power of two from 512 to 256M"));
      block = *bytes;
    } else if (key == "static") {
      const auto on = parse_on_off(value);
      if (!on) return std::unexpected(bad_option(key, value, "on or off"));
      if (*on) type = vdi::ImageType::Static;
    }
  }
  const auto header = vdi::make_header(options.size, static_cast<uint32_t>(block), type, "");
  if (!header) return std::unexpected(header.error());
  const uint64_t all = uint64_t{header->blocks} * block;
  const uint64_t now = type == vdi::ImageType::Static ? all : data_clusters(block) * block;
  return Measure{.required = header->data_offset + now, .fully_allocated = header->data_offset + all};
}

void add(FormatRegistry& formats, const char* name, decltype(Format::measure) measure) {
  const Format* found = formats.find(name);
  if (!found || found->measure) return;
  Format format = *found;
  format.measure = std::move(measure);
  formats.add(std::move(format));
}

}  // namespace

void add_measures(FormatRegistry& formats) {
  add(formats, "raw", measure_raw);
  add(formats, "vdi", measure_vdi);
}

}  // namespace spindle::tools
