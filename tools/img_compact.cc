// `spindle img compact`: makes an image's file as small as its content allows. qemu-img has nothing like it.
#include <fmt/format.h>

#include "image/check.h"
#include "image/info.h"
#include "image/size_text.h"
#include "tools/image_tool.h"

namespace spindle::tools {
namespace {

constexpr const char* kCommand = "img compact";

struct Options {
  ImageArguments image;
  std::string output = "human";
  std::string cache = "writeback";
  bool quiet = false;
};

int compact(const Options& given, const image::Workshop& shop) {
  const auto json = wants_json(kCommand, given.output);
  if (!json) return kExitFailed;
  const auto cache = image::cache_mode_of("-t", given.cache);
  if (!cache) return tool_failed(kCommand, *cache.error());
  const image::OpenMode mode{.cache = *cache, .drop_cache = true};
  const auto outcome = shop.reactor.wait(image::compact_image(shop, given.image.name(), mode));
  if (!outcome) {
    tool_failed(kCommand, *outcome.error());
    return image::check_status(*outcome.error());
  }
  if (*json) return print_result(kCommand, image::check_json(*outcome));
  if (given.quiet) return kExitOk;
  std::string text;
  for (const std::string& line : outcome->report.messages) text += line + "\n";
  text += fmt::format("Image end offset: {} ({})\n", outcome->report.image_end_offset,
                      image::size_text(outcome->report.image_end_offset));
  return print_result(kCommand, text);
}

}  // namespace

void add_img_compact(CLI::App& img, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      img.add_subcommand("compact", "Give back what an image's file holds of zeroes and discarded blocks");
  add_image_arguments(*command, options->image, false);
  command->add_option("--output", options->output, "human or json")->capture_default_str();
  command->add_option("-t", options->cache, "The cache mode to write with")->capture_default_str();
  command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors");
  command->footer("Exit status: 0 done, 1 it went wrong, 63 the format cannot be compacted.");
  command->callback([options, &action] {
    action = [options] {
      return run_image_tool(kCommand, options->quiet, options->image,
                            [&](const image::Workshop& shop) { return compact(*options, shop); });
    };
  });
}

}  // namespace spindle::tools
