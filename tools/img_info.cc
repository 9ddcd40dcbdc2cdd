// `spindle img info`.
#include "image/info.h"
#include "tools/image_tool.h"

namespace spindle::tools {
namespace {

constexpr const char* kCommand = "img info";

struct Options {
  ImageArguments image;
  std::string output = "human";
  bool chain = false;
};

int info(const Options& given, const image::Workshop& shop) {
  const auto json = wants_json(kCommand, given.output);
  if (!json) return kExitFailed;
  const image::OpenMode mode{.force_share = given.image.force_share};
  const auto found = shop.reactor.wait(image::image_info(shop, given.image.name(), mode));
  if (!found) return open_failed(kCommand, given.image.file, *found.error());
  return print_result(kCommand, *json ? image::info_json(*found, given.chain) : image::info_text(*found));
}

}  // namespace

void add_img_info(CLI::App& img, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = img.add_subcommand("info", "Say what an image is");
  add_image_arguments(*command, options->image, true);
  command->add_option("--output", options->output, "human or json")->capture_default_str();
  command->add_flag("--backing-chain", options->chain, "Say it of the images below, too");
  command->callback([options, &action] {
    action = [options] {
      return run_image_tool(kCommand, false, options->image,
                            [&](const image::Workshop& shop) { return info(*options, shop); });
    };
  });
}

}  // namespace spindle::tools
