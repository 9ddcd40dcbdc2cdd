// `spindle img convert`.
#include <fmt/format.h>

#include "block/parse.h"
#include "image/convert.h"
#include "image/progress.h"
#include "tools/image_tool.h"

namespace spindle::tools {
namespace {

constexpr const char* kCommand = "img convert";
constexpr uint64_t kSector = 512;
constexpr uint64_t kLargestSparse = 16 << 20;
constexpr uint64_t kMostCoroutines = 16;

struct Options {
  std::vector<std::string> files;
  ImageArguments source;
  std::string target_format = "raw";
  std::vector<std::string> options;
  std::string cache = "writeback";
  std::string source_cache = "writeback";
  std::string coroutines = "8";
  std::string sparse = "4k";
  bool sparse_given = false;
  bool out_of_order = false;
  bool keep_target = false;
  bool target_options = false;
  bool target_is_zero = false;
  bool compress = false;
  bool bitmaps = false;
  bool salvage = false;
  bool offload = false;
  std::string snapshot;
  std::string rate;
  bool progress = false;
  bool quiet = false;
};

Error wrong(std::string detail) {
  return Error::invalid("", "", std::move(detail));
}

Result<image::CopyOptions> copy_options(const Options& given) {
  const auto coroutines = parse_number(given.coroutines);
  if (!coroutines || *coroutines < 1 || *coroutines > kMostCoroutines) {
    return std::unexpected(wrong(fmt::format(
        "Invalid number of coroutines. Allowed number of coroutines is between 1 and {}", kMostCoroutines)));
  }
  const auto sparse = parse_size(given.sparse);
  if (!sparse || *sparse % kSector != 0 || *sparse > kLargestSparse) {
    return std::unexpected(wrong(
        fmt::format("Invalid buffer size for sparse output specified. Valid sizes are multiples of {} up to "
                    "{}. Select 0 to disable sparse detection (fully allocates output).",
                    kSector, kLargestSparse)));
  }
  return image::CopyOptions{.coroutines = static_cast<unsigned>(*coroutines),
                            .out_of_order = given.out_of_order,
                            .sparse = *sparse,
                            .target_is_zero = given.target_is_zero};
}

Result<image::ConvertRequest> request_of(const Options& given, const image::CreateList& list) {
  if (given.files.empty()) return std::unexpected(wrong("Must specify image file name"));
  if (given.files.size() == 1)
    return std::unexpected(wrong("name an image to read, or several, and one to make, in this order"));
  if (given.bitmaps) return std::unexpected(wrong("Source lacks bitmap support"));
  if (!given.snapshot.empty())
    return std::unexpected(
        wrong("Failed to load snapshot: -l is about snapshots inside an image, which are not read here"));
  if (given.offload && given.sparse_given)
    return std::unexpected(wrong("Cannot enable copy offloading when -S is used"));
  if (given.offload && given.salvage)
    return std::unexpected(wrong("Cannot use copy offloading in salvaging mode"));
  uint64_t rate = 0;
  if (!given.rate.empty()) {
    const auto parsed = parse_size(given.rate);
    if (!parsed) {
      return std::unexpected(
          wrong("Invalid rate limit specified. You may use k, M, G, T, P or E suffixes for "
                "kilobytes, megabytes, gigabytes, terabytes, petabytes and exabytes."));
    }
    rate = *parsed;
  }
  if (given.compress) return std::unexpected(wrong("Compression not supported for this file format"));
  if (given.target_options && !given.keep_target)
    return std::unexpected(wrong("--target-image-opts requires use of -n flag"));
  if (given.target_is_zero && !given.keep_target)
    return std::unexpected(wrong("--target-is-zero requires use of -n flag"));
  if (given.keep_target && !given.options.empty())
    return std::unexpected(wrong("-o is about making the target, which -n says is there already"));
  const auto source_cache = image::cache_mode_of("-T", given.source_cache);
  if (!source_cache) return std::unexpected(source_cache.error());
  const auto cache = image::cache_mode_of("-t", given.cache);
  if (!cache) return std::unexpected(cache.error());
  const auto copy = copy_options(given);
  if (!copy) return std::unexpected(copy.error());
  image::ConvertRequest request{.sources = {},
                                .source_cache = *source_cache,
                                .force_share = given.source.force_share,
                                .target = given.files.back(),
                                .target_format = given.target_format,
                                .target_options = given.target_options,
                                .target_cache = *cache,
                                .keep_target = given.keep_target,
                                .create = list,
                                .copy = *copy,
                                .rate = rate};
  for (std::size_t i = 0; i + 1 < given.files.size(); ++i) {
    request.sources.push_back(given.source.name());
    request.sources.back().text = given.files[i];
  }
  return request;
}

int convert(const Options& given, const image::Workshop& shop) {
  const auto format = image::format_to_create(shop.formats, given.target_format);
  if (!format) return tool_failed(kCommand, *format.error());
  const auto list = image::parse_create_options(**format, given.options);
  if (!list) return tool_failed(kCommand, *list.error());
  if (list->help) return print_result(kCommand, image::create_help(**format));
  if (const auto objects = check_objects(given.source.objects); !objects)
    return tool_failed(kCommand, *objects.error());
  auto request = request_of(given, *list);
  if (!request) return tool_failed(kCommand, *request.error());
  if (given.salvage) {
    request->copy.salvage = [](const Error& error) {
      tool_note(kCommand,
                fmt::format("warning: error while reading offset {}: {}", error.offset, error.message()));
    };
  }
  image::Progress progress(given.progress && !given.quiet);
  const auto done = shop.reactor.wait(image::convert_image(shop, std::move(*request), progress));
  return done ? kExitOk : open_failed(kCommand, done.error()->node, *done.error());
}

}  // namespace

void add_img_convert(CLI::App& img, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = img.add_subcommand("convert", "Make one image from another");
  command->add_option("FILES", options->files,
                      "The images to read, one after the other, and the one to make");
  command->add_option("-f", options->source.format, "The source's format; found out if it is not given")
      ->type_name("FMT");
  command->add_flag("--image-opts", options->source.options, "The source is a list of options");
  command->add_flag("-U,--force-share", options->source.force_share, "Read it even if others are writing it");
  add_objects(*command, options->source.objects);
  command->add_option("-O", options->target_format, "The target's format")
      ->type_name("FMT")
      ->capture_default_str();
  command->add_option("-o", options->options, "Options of the target's format; `-o help` lists them")
      ->type_name("OPTIONS")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  command
      ->add_option("-t", options->cache,
                   "The cache mode to write with; with unsafe the target is not safe when it is done")
      ->capture_default_str();
  command->add_option("-T", options->source_cache, "The cache mode to read with")->capture_default_str();
  command->add_option("-m", options->coroutines, "How many pieces are in work together, 1 to 16")
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("-W", options->out_of_order, "Writes need not begin in the order of the image");
  CLI::Option* sparse =
      command
          ->add_option("-S", options->sparse, "So many zeroes become a hole; 0: none do, and all is written")
          ->type_name("SIZE")
          ->capture_default_str();
  command->add_flag("-n", options->keep_target, "The target is there already; write into it");
  command->add_flag("--target-image-opts", options->target_options, "The target is a list of options");
  command->add_flag("--target-is-zero", options->target_is_zero, "It is all zeroes, so they need no writing");
  command->add_flag("-c", options->compress, "Refused: no format here compresses");
  command->add_flag("--bitmaps", options->bitmaps, "Refused: no format here has bitmaps to copy");
  command->add_flag("--salvage", options->salvage, "What cannot be read becomes zeroes, and is told");
  command->add_flag("-C", options->offload, "Accepted: the host may copy by itself; it is not asked to");
  command->add_option("-l", options->snapshot, "Refused: snapshots inside an image are not read")
      ->type_name("SNAPSHOT");
  command->add_option("-r", options->rate, "So many bytes a second at most")->type_name("RATE");
  command->add_flag("-p", options->progress, "Show how far it is; so does SIGUSR1");
  command->add_flag("-q", options->quiet, "Print nothing but errors");
  command->callback([options, sparse, &action] {
    options->sparse_given = sparse->count() != 0;
    action = [options] {
      return run_image_tool(kCommand, options->quiet,
                            [&](const image::Workshop& shop) { return convert(*options, shop); });
    };
  });
}

}  // namespace spindle::tools
