// `spindle img dd`.
#include <fmt/format.h>

#include <limits>

#include "block/parse.h"
#include "image/convert.h"
#include "image/progress.h"
#include "tools/image_tool.h"

namespace spindle::tools {
namespace {

constexpr const char* kCommand = "img dd";
constexpr uint64_t kDefaultBlock = 512;
constexpr uint64_t kLargestBlock = std::numeric_limits<int32_t>::max();
constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();

struct Options {
  std::vector<std::string> operands;
  ImageArguments image;
  std::string target_format = "raw";
};

struct Operands {
  std::string input;
  std::string output;
  uint64_t block = kDefaultBlock;
  std::optional<uint64_t> count = std::nullopt;
  uint64_t skip = 0;
};

Error wrong(std::string detail) {
  return Error::invalid("", "", std::move(detail));
}

Result<uint64_t> number_of(const std::string& key, const std::string& value) {
  if (const auto number = parse_size(value)) return *number;
  return std::unexpected(wrong(fmt::format(
      "Invalid {} specified. You may use k, M, G, T, P or E suffixes for kilobytes, megabytes, gigabytes, "
      "terabytes, petabytes and exabytes.",
      key)));
}

Result<Operands> parse_operands(const std::vector<std::string>& words) {
  Operands found;
  for (const std::string& word : words) {
    const auto equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const std::string value = equals == word.npos ? "" : word.substr(equals + 1);
    if (equals == word.npos || (key != "if" && key != "of" && key != "bs" && key != "count" && key != "skip"))
      return std::unexpected(wrong("unrecognized operand " + key));
    if (key == "if") found.input = value;
    if (key == "of") found.output = value;
    if (key == "if" || key == "of") continue;
    auto number = number_of(key, value);
    if (!number) return std::unexpected(std::move(number.error()));
    if (key == "bs" && (*number == 0 || *number > kLargestBlock)) {
      return std::unexpected(
          wrong(fmt::format("Invalid bs specified. Must be between 1 and {}.", kLargestBlock)));
    }
    if (key == "bs") found.block = *number;
    if (key == "count") found.count = *number;
    if (key == "skip") found.skip = *number;
  }
  if (found.input.empty() || found.output.empty())
    return std::unexpected(wrong("Must specify both input and output files"));
  return found;
}

// Blocks in bytes; what does not fit is behind every image's end.
uint64_t bytes_of(uint64_t blocks, uint64_t block) {
  return blocks > kLargest / block ? kLargest : blocks * block;
}

// What skip= and count= say of a source of `size` bytes: count= counts from the start, not from skip=.
void set_range(const Operands& operands, uint64_t size, image::CopyOptions& copy) {
  const uint64_t end = operands.count ? std::min(size, bytes_of(*operands.count, operands.block)) : size;
  copy.begin = bytes_of(operands.skip, operands.block);
  copy.end = end;
}

int dd(const Options& given, const image::Workshop& shop) {
  if (const auto objects = check_objects(given.image.objects); !objects)
    return tool_failed(kCommand, *objects.error());
  const auto operands = parse_operands(given.operands);
  if (!operands) return tool_failed(kCommand, *operands.error());
  ImageArguments source = given.image;
  source.file = operands->input;
  image::ConvertRequest request{.sources = {source.name()},
                                .force_share = source.force_share,
                                .target = operands->output,
                                .target_format = given.target_format,
                                .copy = {.sparse = 0},
                                .pad_raw = true};
  auto disk = shop.reactor.wait(image::open_image(shop, source.name(), {.force_share = source.force_share}));
  if (!disk) return open_failed(kCommand, source.file, *disk.error());
  set_range(*operands, (*disk)->size(), request.copy);
  if (const auto closed = shop.reactor.wait((*disk)->close()); !closed)
    return tool_failed(kCommand, *closed.error());
  const auto format = image::format_to_create(shop.formats, given.target_format);
  if (!format) return tool_failed(kCommand, *format.error());
  if (request.copy.begin > *request.copy.end)
    tool_note(kCommand, fmt::format("{}: cannot skip to specified offset", source.file));
  image::Progress progress(false);
  const auto done = shop.reactor.wait(image::convert_image(shop, std::move(request), progress));
  return done ? kExitOk : tool_failed(kCommand, *done.error());
}

}  // namespace

void add_img_dd(CLI::App& img, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = img.add_subcommand("dd", "Copy part of an image into a new one");
  command->add_option("OPERANDS", options->operands,
                      "if=FILE and of=FILE, and of blocks: bs=BYTES (512), skip=N, and count=N, which counts "
                      "from the start of the image");
  command->add_option("-f", options->image.format, "The source's format; found out if it is not given")
      ->type_name("FMT");
  command->add_flag("--image-opts", options->image.options, "The source is a list of options");
  add_objects(*command, options->image.objects);
  command->add_flag("-U,--force-share", options->image.force_share, "Read it even if others are writing it");
  command->add_option("-O", options->target_format, "The target's format")
      ->type_name("FMT")
      ->capture_default_str();
  command->callback([options, &action] {
    action = [options] {
      return run_image_tool(kCommand, false, [&](const image::Workshop& shop) { return dd(*options, shop); });
    };
  });
}

}  // namespace spindle::tools
