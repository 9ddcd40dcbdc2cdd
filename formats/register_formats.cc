#include "formats/register_formats.h"

#include "block/parse.h"
#include "formats/qcow2/register.h"
#include "formats/raw_create.h"
#include "formats/raw_node.h"
#include "formats/vdi/register.h"

namespace spindle {
namespace {

Task<Result<std::shared_ptr<Node>>> open_raw(std::shared_ptr<Node> child, OpenOptions open_options) {
  RawNode::Options raw;
  for (const auto& [key, value] : open_options.options) {
    const auto bytes = parse_size(value);
    if (!bytes) {
      co_return std::unexpected(bad_option(key, value, "a size in bytes, or with a suffix k, M, G or T"));
    }
    if (key == "offset") raw.offset = *bytes;
    if (key == "size") raw.size = bytes;
  }
  auto node = RawNode::open(std::move(child), raw);
  if (!node) co_return std::unexpected(std::move(node.error()));
  co_return std::shared_ptr<Node>(std::move(*node));
}

}  // namespace

void register_formats(FormatRegistry& registry) {
  registry.add(Format{.name = "raw",
                      .option_keys = {"offset", "size"},
                      .grows = false,
                      .open = open_raw,
                      .create = create_raw,
                      .create_options = raw_create_options(),
                      .measure = measure_raw});
  registry.add(qcow2::format());
  registry.add(vdi::format());
}

}  // namespace spindle
