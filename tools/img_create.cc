// `spindle img create`.
#include <fmt/format.h>

#include "image/create.h"
#include "tools/image_tool.h"

namespace spindle::tools {
namespace {

constexpr const char* kCommand = "img create";

struct Options {
  std::string file;
  std::string size;
  std::string format = "raw";
  std::vector<std::string> objects;
  std::vector<std::string> options;
  bool quiet = false;
};

int create(const Options& given, const image::Workshop& shop) {
  if (const auto objects = check_objects(given.objects); !objects)
    return tool_failed(kCommand, *objects.error());
  const auto format = image::format_to_create(shop.formats, given.format);
  if (!format) return tool_failed(kCommand, *format.error());
  auto list = image::parse_create_options(**format, given.options);
  if (!list) return tool_failed(kCommand, *list.error());
  if (list->help) return print_result(kCommand, image::create_help(**format));
  if (given.file.empty())
    return tool_failed(kCommand, Error::invalid("", "", "name the image to be made, and its size"));
  if (!given.size.empty()) {
    if (list->size)
      return tool_failed(kCommand,
                         Error::invalid("", given.file, "The image size must be specified only once"));
    const auto size = image::parse_image_size(given.size);
    if (!size) return tool_failed(kCommand, *size.error());
    list->size = *size;
  }
  if (!list->size)
    return tool_failed(kCommand, Error::invalid("", given.file, "Image creation needs a size parameter"));
  const CreateOptions options{.size = *list->size, .options = std::move(list->options)};
  if (!given.quiet) {
    if (const int status = print_result(kCommand, image::formatting_line(given.file, **format, options));
        status != kExitOk)
      return status;
  }
  const CreateOptions whole{.size = image::to_sectors(options.size), .options = options.options};
  const auto made =
      shop.reactor.wait(image::create_image(shop, **format, given.file, whole, CacheMode::Writeback));
  return made ? kExitOk : tool_failed(kCommand, *made.error());
}

}  // namespace

void add_img_create(CLI::App& img, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = img.add_subcommand("create", "Make an image");
  command->add_option("FILE", options->file, "The image; what it held is lost");
  command->add_option("SIZE", options->size, "What the guest will see, in bytes or with a suffix k to E");
  command->add_option("-f", options->format, "The format")->type_name("FMT")->capture_default_str();
  command->add_option("-o", options->options, "Options of the format, key=value,...; `-o help` lists them")
      ->type_name("OPTIONS")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  add_objects(*command, options->objects);
  command->add_flag("-q,--quiet", options->quiet, "Print nothing but errors");
  command->callback([options, &action] {
    action = [options] {
      return run_image_tool(kCommand, options->quiet,
                            [&](const image::Workshop& shop) { return create(*options, shop); });
    };
  });
}

}  // namespace spindle::tools
