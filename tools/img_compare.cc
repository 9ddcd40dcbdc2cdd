// `spindle img compare`.
#include "image/compare.h"
#include "image/output.h"
#include "tools/image_tool.h"

namespace spindle::tools {
namespace {

constexpr const char* kCommand = "img compare";

struct Options {
  std::vector<std::string> files;
  ImageArguments image;
  std::string second_format;
  std::string cache = "writeback";
  bool strict = false;
  bool progress = false;
  bool quiet = false;
};

Task<Result<>> close_both(Disk& first, Disk& second) {
  auto one = co_await first.close();
  auto other = co_await second.close();
  co_return one ? std::move(other) : std::move(one);
}

int compare(const Options& given, const image::Workshop& shop) {
  const auto cache = image::cache_mode_of("-T", given.cache);
  if (!cache) {
    tool_failed(kCommand, "Invalid source cache option: " + given.cache);
    return image::kCompareNotOpened;
  }
  const image::OpenMode mode{.cache = *cache, .force_share = given.image.force_share};
  std::unique_ptr<Disk> disks[2];
  for (const int i : {0, 1}) {
    ImageArguments arguments = given.image;
    arguments.file = given.files[static_cast<std::size_t>(i)];
    if (i == 1) arguments.format = given.second_format;
    auto disk = shop.reactor.wait(image::open_image(shop, arguments.name(), mode));
    if (!disk) {
      open_failed(kCommand, arguments.file, *disk.error());
      if (disks[0]) static_cast<void>(shop.reactor.wait(disks[0]->close()));  // the first error is told
      return image::kCompareNotOpened;
    }
    disks[i] = std::move(*disk);
  }
  image::Comparison found;
  {
    image::Progress progress(given.progress && !given.quiet);
    found = shop.reactor.wait(image::compare_disks(*disks[0], *disks[1], given.strict, progress));
    if (found.status > image::kCompareDifferent) {
      tool_failed(kCommand, found.error);
    } else if (!given.quiet && print_result(kCommand, found.text) != kExitOk) {
      found.status = image::kCompareNotRead;  // a verdict that nobody has read is none
    }
  }
  const auto closed = shop.reactor.wait(close_both(*disks[0], *disks[1]));
  if (!closed && found.status <= image::kCompareDifferent) {
    tool_failed(kCommand, *closed.error());
    return image::kCompareNotRead;
  }
  return found.status;
}

int check_and_compare(const Options& given, const image::Workshop& shop) {
  if (const auto objects = check_objects(given.image.objects); !objects) {
    tool_failed(kCommand, *objects.error());
    return image::kCompareNotOpened;
  }
  return compare(given, shop);
}

}  // namespace

void add_img_compare(CLI::App& img, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = img.add_subcommand("compare", "Say whether two images hold the same");
  command->add_option("FILES", options->files, "The two images");
  command->add_option("-f", options->image.format, "The first one's format; found out if it is not given")
      ->type_name("FMT");
  command->add_option("-F", options->second_format, "The second one's format")->type_name("FMT");
  command->add_flag("--image-opts", options->image.options, "Both are lists of options");
  add_objects(*command, options->image.objects);
  command->add_flag("-U,--force-share", options->image.force_share,
                    "Read them even if others are writing them");
  command->add_option("-T", options->cache, "The cache mode to read with")->capture_default_str();
  command->add_flag("-s", options->strict,
                    "They must be equally long, with data and holes in the same places");
  command->add_flag("-p", options->progress, "Show how far it is; so does SIGUSR1");
  command->add_flag("-q", options->quiet, "Print nothing but errors");
  command->footer(
      "Exit status: 0 they are the same, 1 they are not, 2 one could not be opened, 3 its map could not be\n"
      "read, 4 its data could not be read.");
  command->callback([options, &action] {
    action = [options] {
      if (options->files.size() != 2) return usage_failed(kCommand, "Expecting two image file names");
      return run_image_tool(kCommand, options->quiet,
                            [&](const image::Workshop& shop) { return check_and_compare(*options, shop); });
    };
  });
}

}  // namespace spindle::tools
