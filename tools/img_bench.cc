// `spindle img bench`.
#include <fmt/format.h>

#include "block/parse.h"
#include "image/bench.h"
#include "image/create.h"
#include "image/output.h"
#include "tools/image_tool.h"

namespace spindle::tools {
namespace {

constexpr const char* kCommand = "img bench";

struct Options {
  ImageArguments image;
  std::string count = "75000";
  std::string depth = "64";
  std::string flush_interval;
  std::string aio;
  std::string offset = "0";
  std::string pattern = "0";
  std::string request = "4096";
  std::string step = "0";
  std::string cache = "writeback";
  bool native = false;
  bool no_drain = false;
  bool write = false;
  bool quiet = false;
};

Error wrong(std::string detail) {
  return Error::invalid("", "", std::move(detail));
}

Result<> set_number(uint64_t& target, const char* what, const std::string& text) {
  const auto number = parse_number(text);
  if (!number) return std::unexpected(wrong(fmt::format("{}: \"{}\" is no number", what, text)));
  target = *number;
  return {};
}

Result<> set_size(uint64_t& target, const std::string& text) {
  auto size = image::parse_image_size(text);
  if (!size) return std::unexpected(std::move(size.error()));
  target = *size;
  return {};
}

Result<image::BenchOptions> bench_options(const Options& given) {
  image::BenchOptions options{.write = given.write, .drain = !given.no_drain};
  SPINDLE_TRY(set_number(options.count, "-c", given.count));
  SPINDLE_TRY(set_number(options.depth, "-d", given.depth));
  SPINDLE_TRY(set_size(options.offset, given.offset));
  SPINDLE_TRY(set_size(options.request, given.request));
  SPINDLE_TRY(set_size(options.step, given.step));
  if (!given.flush_interval.empty())
    SPINDLE_TRY(set_number(options.flush_interval, "--flush-interval", given.flush_interval));
  const auto pattern = parse_number(given.pattern);
  if (!pattern || *pattern > 0xff) return std::unexpected(wrong("Invalid pattern byte specified"));
  options.pattern = static_cast<uint8_t>(*pattern);
  if (!given.aio.empty() && given.aio != "threads" && given.aio != "native" && given.aio != "io_uring")
    return std::unexpected(wrong("Invalid aio option: " + given.aio));
  SPINDLE_TRY(image::check_bench(options));
  return options;
}

int bench(const Options& given, const image::Workshop& shop) {
  const auto options = bench_options(given);
  if (!options) return tool_failed(kCommand, *options.error());
  const auto cache = image::cache_mode_of("-t", given.cache);
  if (!cache) return tool_failed(kCommand, *cache.error());
  const image::OpenMode mode{.write = given.write, .cache = *cache, .force_share = given.image.force_share};
  auto disk = shop.reactor.wait(image::open_image(shop, given.image.name(), mode));
  if (!disk) return open_failed(kCommand, given.image.file, *disk.error());
  int status = print_result(kCommand, image::bench_text(*options));
  if (status == kExitOk) {
    const auto time = shop.reactor.wait(image::run_bench(**disk, *options));
    const double seconds = time ? std::chrono::duration<double>(*time).count() : 0;
    status = time ? print_result(kCommand, fmt::format("Run completed in {:.3f} seconds.\n", seconds))
                  : tool_failed(kCommand, *time.error());
  }
  const auto closed = shop.reactor.wait((*disk)->close());
  if (status == kExitOk && !closed) return tool_failed(kCommand, *closed.error());
  return status;
}

}  // namespace

void add_img_bench(CLI::App& img, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = img.add_subcommand("bench", "Time a run of equal requests");
  add_image_arguments(*command, options->image, true);
  command->add_option("-c", options->count, "How many requests")->capture_default_str();
  command->add_option("-d", options->depth, "How many are in flight together")->capture_default_str();
  command->add_option("--flush-interval", options->flush_interval, "A flush after so many writes");
  command->add_flag("--no-drain", options->no_drain, "Flushes run beside writes");
  command->add_option("-i", options->aio, "threads, native or io_uring: accepted, and always io_uring");
  command->add_flag("-n", options->native, "The same as -i native");
  command->add_option("-o", options->offset, "Where to begin")->capture_default_str();
  command->add_option("--pattern", options->pattern, "The byte that is written")->capture_default_str();
  command->add_option("-s", options->request, "Bytes of a request")->capture_default_str();
  command->add_option("-S", options->step, "Bytes from one to the next; 0: as many as a request has");
  command->add_option("-t", options->cache, "The cache mode")->capture_default_str();
  command->add_flag("-w", options->write, "Write instead of reading; what the image holds is lost");
  command->add_flag("-q,--quiet", options->quiet, "No notes on standard error");
  command->callback([options, &action] {
    action = [options] {
      return run_image_tool(kCommand, options->quiet, options->image,
                            [&](const image::Workshop& shop) { return bench(*options, shop); });
    };
  });
}

}  // namespace spindle::tools
