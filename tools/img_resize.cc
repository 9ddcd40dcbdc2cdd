// `spindle img resize`.
#include "image/resize.h"
#include "tools/image_tool.h"

namespace spindle::tools {
namespace {

constexpr const char* kCommand = "img resize";

struct Options {
  std::vector<std::string> words;
  ImageArguments image;
  std::string preallocation = "off";
  bool shrink = false;
  bool quiet = false;
};

int resize_open(const Options& given, const std::string& format, image::GrowBy grow,
                const image::Workshop& shop, Disk& disk) {
  const auto size = image::new_size(given.words[1], disk.size());
  if (!size) return tool_failed(kCommand, *size.error());
  if (*size < disk.size() && grow == image::GrowBy::Holes && !given.shrink) {
    tool_failed(kCommand, "Use the --shrink option to perform a shrink operation.");
    tool_note(kCommand,
              "warning: Shrinking an image will delete all data beyond the shrunken image's end. Before "
              "performing such an operation, make sure there is no important data there.");
    return kExitFailed;
  }
  const auto resized = shop.reactor.wait(image::resize_image(disk, format, *size, grow));
  return resized ? kExitOk : tool_failed(kCommand, *resized.error());
}

int resize(const Options& given, const image::Workshop& shop) {
  if (const auto objects = check_objects(given.image.objects); !objects)
    return tool_failed(kCommand, *objects.error());
  const auto grow = image::parse_preallocation(given.preallocation);
  if (!grow) return tool_failed(kCommand, *grow.error());
  // What is no size is told before anything is opened.
  if (const auto size = image::new_size(given.words[1], 1);
      !size && size.error()->detail.starts_with("Parameter"))
    return tool_failed(kCommand, *size.error());
  ImageArguments arguments = given.image;
  arguments.file = given.words[0];
  const image::OpenMode mode{.write = true, .drop_cache = true};
  auto spec = image::describe_image(shop, arguments.name(), mode);
  if (!spec) return open_failed(kCommand, arguments.file, *spec.error());
  const std::string format = spec->format;
  auto disk = shop.reactor.wait(image::open_disk(shop, std::move(*spec)));
  if (!disk) return open_failed(kCommand, arguments.file, *disk.error());
  const int status = resize_open(given, format, *grow, shop, **disk);
  const auto closed = shop.reactor.wait((*disk)->close());
  if (status != kExitOk) return status;
  if (!closed) return tool_failed(kCommand, *closed.error());
  return given.quiet ? kExitOk : print_result(kCommand, "Image resized.\n");
}

}  // namespace

void add_img_resize(CLI::App& img, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = img.add_subcommand("resize", "Give an image another size");
  command->add_option("FILE_AND_SIZE", options->words,
                      "The image, and its new size, or by how much: +SIZE makes it longer, -SIZE shorter");
  command->add_option("-f", options->image.format, "Its format; found out if it is not given")
      ->type_name("FMT");
  command->add_flag("--image-opts", options->image.options, "FILE is a list of options");
  add_objects(*command, options->image.objects);
  command
      ->add_option("--preallocation", options->preallocation,
                   "How the new space is reserved, for raw: off, falloc or full")
      ->capture_default_str();
  command->add_flag("--shrink", options->shrink,
                    "It may become shorter, and what lies behind its new end is lost");
  command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors");
  command->callback([options, &action] {
    action = [options] {
      if (options->words.size() < 2) return usage_failed(kCommand, "Not enough arguments");
      if (options->words.size() > 2) return usage_failed(kCommand, "Expecting image file name and size");
      return run_image_tool(kCommand, options->quiet,
                            [&](const image::Workshop& shop) { return resize(*options, shop); });
    };
  });
}

}  // namespace spindle::tools
