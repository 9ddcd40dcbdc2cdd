// `spindle img check`.
#include "image/check.h"
#include "tools/image_tool.h"

namespace spindle::tools {
namespace {

constexpr const char* kCommand = "img check";

struct Options {
  ImageArguments image;
  std::string output = "human";
  std::string repair;
  std::string cache = "writeback";
  bool quiet = false;
};

int check(const Options& given, const image::Workshop& shop) {
  const auto json = wants_json(kCommand, given.output);
  if (!json) return kExitFailed;
  Repair repair = Repair::None;
  if (given.repair == "leaks") {
    repair = Repair::Leaks;
  } else if (given.repair == "all") {
    repair = Repair::All;
  } else if (!given.repair.empty()) {
    return tool_failed(
        kCommand,
        Error::invalid("", "", "Unknown option value for -r (expecting 'leaks' or 'all'): " + given.repair));
  }
  const auto cache = image::cache_mode_of("-T", given.cache);
  if (!cache) return tool_failed(kCommand, *cache.error());
  const image::OpenMode mode{.cache = *cache, .force_share = given.image.force_share, .drop_cache = true};
  const auto outcome = shop.reactor.wait(image::check_image(shop, given.image.name(), mode, repair));
  if (!outcome) {
    open_failed(kCommand, given.image.file, *outcome.error());
    return image::check_status(*outcome.error());
  }
  if (!given.quiet || *json) {
    const int status =
        print_result(kCommand, *json ? image::check_json(*outcome) : image::check_text(*outcome));
    if (status != kExitOk) return status;
  }
  return image::check_status(outcome->report);
}

}  // namespace

void add_img_check(CLI::App& img, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = img.add_subcommand("check", "Look for contradictions in an image, and mend them");
  add_image_arguments(*command, options->image, true);
  command->add_option("--output", options->output, "human or json")->capture_default_str();
  command
      ->add_option("-r,--repair", options->repair,
                   "leaks: give back space that nothing uses; all: mend everything")
      ->type_name("WHAT");
  command->add_option("-T", options->cache, "The cache mode to read with")->capture_default_str();
  command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors");
  command->footer(
      "Exit status: 0 clean (now), 1 it could not be checked, 2 there are corruptions, 3 space is leaked,\n"
      "63 the format has no checks.");
  command->callback([options, &action] {
    action = [options] {
      return run_image_tool(kCommand, options->quiet, options->image,
                            [&](const image::Workshop& shop) { return check(*options, shop); });
    };
  });
}

}  // namespace spindle::tools
