// `spindle img measure`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "block/parse.h"
#include "image/create.h"
#include "image/data_runs.h"
#include "tools/image_tool.h"

namespace spindle::tools {
namespace {

constexpr const char* kCommand = "img measure";

struct Options {
  std::vector<std::string> files;
  ImageArguments image;
  std::string size;
  std::string target_format = "raw";
  std::vector<std::string> options;
  std::string snapshot;
  std::string output = "human";
};

// What there is to store: the size, and where in it there are data.
struct Content {
  uint64_t size = 0;
  std::vector<ByteRange> data = {};
};

Result<Content> content_of_disk(const image::Workshop& shop, Disk& disk) {
  auto runs = shop.reactor.wait(image::data_runs(disk));
  const auto closed = shop.reactor.wait(disk.close());
  if (!runs) return std::unexpected(std::move(runs.error()));
  if (!closed) return std::unexpected(closed.error());
  return Content{.size = disk.size(), .data = std::move(*runs)};
}

std::string text_of(const Measure& measure, bool json) {
  if (!json) {
    std::string text = fmt::format("required size: {}\nfully allocated size: {}\n", measure.required,
                                   measure.fully_allocated);
    if (measure.bitmaps) text += fmt::format("bitmaps size: {}\n", *measure.bitmaps);
    return text;
  }
  nlohmann::ordered_json result;
  if (measure.bitmaps) result["bitmaps"] = *measure.bitmaps;
  result["required"] = measure.required;
  result["fully-allocated"] = measure.fully_allocated;
  return result.dump(4) + "\n";
}

// What contradicts itself in the command line, or an empty text.
std::string contradiction(const Options& given) {
  if (given.files.size() > 1) return "At most one filename argument is allowed.";
  if (given.files.empty() && (given.image.options || !given.image.format.empty() || !given.snapshot.empty()))
    return "--image-opts, -f, and -l require a filename argument.";
  if (given.files.empty() && given.size.empty()) return "Either --size N or one filename must be specified.";
  if (!given.files.empty() && !given.size.empty()) return "--size N cannot be used together with a filename.";
  if (!given.snapshot.empty())
    return "Failed to load snapshot: -l is about snapshots inside an image, which are not read here";
  return "";
}

int measure(const Options& given, const image::Workshop& shop) {
  const auto json = wants_json(kCommand, given.output);
  if (!json) return kExitFailed;
  if (const auto objects = check_objects(given.image.objects); !objects)
    return tool_failed(kCommand, *objects.error());
  if (const std::string wrong = contradiction(given); !wrong.empty()) return tool_failed(kCommand, wrong);
  Content content;
  if (!given.size.empty()) {
    const auto size = parse_size(given.size);
    if (!size) {
      return tool_failed(
          kCommand,
          "Invalid image size specified. You may use k, M, G, T, P or E suffixes for kilobytes, "
          "megabytes, gigabytes, terabytes, petabytes and exabytes.");
    }
    content.size = *size;
  }
  const Format* format = shop.formats.find(given.target_format);
  if (!format) return tool_failed(kCommand, fmt::format("Unknown file format '{}'", given.target_format));
  auto list = image::parse_create_options(*format, given.options);
  if (!list) return tool_failed(kCommand, *list.error());
  if (list->help) return print_result(kCommand, image::create_help(*format));
  if (!format->measure) {
    return tool_failed(kCommand,
                       fmt::format("Block driver '{}' does not support size measurement", format->name));
  }
  if (!given.files.empty()) {
    ImageArguments arguments = given.image;
    arguments.file = given.files[0];
    const image::OpenMode mode{.force_share = arguments.force_share};
    auto disk = shop.reactor.wait(image::open_image(shop, arguments.name(), mode));
    if (!disk) return open_failed(kCommand, arguments.file, *disk.error());
    auto found = content_of_disk(shop, **disk);
    if (!found) return tool_failed(kCommand, *found.error());
    content = std::move(*found);
  }
  const CreateOptions options{.size = content.size, .options = std::move(list->options)};
  const auto measured = format->measure(
      options, [&](uint64_t cluster) { return image::clusters_touched(content.data, cluster); });
  return measured ? print_result(kCommand, text_of(*measured, *json))
                  : tool_failed(kCommand, *measured.error());
}

}  // namespace

void add_img_measure(CLI::App& img, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = img.add_subcommand("measure", "Say how large a file an image would need");
  command->add_option("FILE", options->files, "An image whose content is to be stored");
  command->add_option("--size", options->size, "Or the size of an empty one")->type_name("SIZE");
  command->add_option("-f", options->image.format, "FILE's format; found out if it is not given")
      ->type_name("FMT");
  command->add_flag("--image-opts", options->image.options, "FILE is a list of options");
  add_objects(*command, options->image.objects);
  command->add_flag("-U,--force-share", options->image.force_share, "Read it even if others are writing it");
  command->add_option("-l", options->snapshot, "Refused: snapshots inside an image are not read")
      ->type_name("SNAPSHOT");
  command->add_option("-O", options->target_format, "The format to store it in")
      ->type_name("FMT")
      ->capture_default_str();
  command->add_option("-o", options->options, "Options of that format; `-o help` lists them")
      ->type_name("OPTIONS")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  command->add_option("--output", options->output, "human or json")->capture_default_str();
  command->callback([options, &action] {
    action = [options] {
      return run_image_tool(kCommand, false,
                            [&](const image::Workshop& shop) { return measure(*options, shop); });
    };
  });
}

}  // namespace spindle::tools
