// `spindle img map`.
#include "image/create.h"
#include "image/map.h"
#include "tools/image_tool.h"

namespace spindle::tools {
namespace {

constexpr const char* kCommand = "img map";

struct Options {
  ImageArguments image;
  std::string output = "human";
  std::string start;
  std::string length;
};

Result<image::MapRange> range_of(const Options& given) {
  image::MapRange range;
  if (!given.start.empty()) {
    auto start = image::parse_image_size(given.start);
    if (!start) return std::unexpected(std::move(start.error()));
    range.start = *start;
  }
  if (!given.length.empty()) {
    auto length = image::parse_image_size(given.length);
    if (!length) return std::unexpected(std::move(length.error()));
    range.length = *length;
  }
  return range;
}

int map(const Options& given, const image::Workshop& shop) {
  const auto json = wants_json(kCommand, given.output);
  if (!json) return kExitFailed;
  const auto range = range_of(given);
  if (!range) return tool_failed(kCommand, *range.error());
  const image::OpenMode mode{.force_share = given.image.force_share};
  auto spec = image::describe_image(shop, given.image.name(), mode);
  if (!spec) return open_failed(kCommand, given.image.file, *spec.error());
  const std::string file = spec->file;
  auto disk = shop.reactor.wait(image::open_disk(shop, std::move(*spec)));
  if (!disk) return open_failed(kCommand, given.image.file, *disk.error());
  const auto style = *json ? image::MapStyle::Json : image::MapStyle::Human;
  const auto printed = shop.reactor.wait(image::print_map(**disk, file, *range, style, image::put));
  const auto closed = shop.reactor.wait((*disk)->close());
  if (!printed) return tool_failed(kCommand, *printed.error());
  return closed ? kExitOk : tool_failed(kCommand, *closed.error());
}

}  // namespace

void add_img_map(CLI::App& img, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = img.add_subcommand("map", "Say where an image's data lie");
  add_image_arguments(*command, options->image, true);
  command->add_option("--output", options->output, "human or json")->capture_default_str();
  command->add_option("-s,--start-offset", options->start, "Where in the image to begin");
  command->add_option("-l,--max-length", options->length, "How many bytes of it to look at");
  command->callback([options, &action] {
    action = [options] {
      return run_image_tool(kCommand, false, options->image,
                            [&](const image::Workshop& shop) { return map(*options, shop); });
    };
  });
}

}  // namespace spindle::tools
