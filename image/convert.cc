#include "image/convert.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "block/protocols/file_name.h"

namespace spindle::image {
namespace {

constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();  // what a file can hold

// raw is the only format whose images may end within a sector.
uint64_t size_for(const ConvertRequest& request, const Format& format, uint64_t size) {
  return format.name == "raw" && !request.pad_raw ? size : to_sectors(size);
}

Error same_file_error(const std::string& target) {
  return Error::invalid("convert", target, "source and target are the same file; name another target");
}

ImageName target_name(const ConvertRequest& request) {
  if (request.target_options) return {.text = request.target, .options = true};
  return {.text = request.target, .format = request.target_format};
}

Result<CreateOptions> options_to_create(const ConvertRequest& request, const Format& format,
                                        uint64_t source_size) {
  CreateOptions options{.size = size_for(request, format, source_size), .options = request.create.options};
  if (!request.create.size) return options;
  if (*request.create.size < source_size) {
    return std::unexpected(
        Error::invalid("convert", request.target,
                       fmt::format("size={} is smaller than the source, which has {} bytes",
                                   *request.create.size, source_size)));
  }
  options.size = size_for(request, format, *request.create.size);
  return options;
}

// The images to read, and how much of them all is to be copied.
struct Sources {
  std::vector<std::unique_ptr<Disk>> disks = {};
  uint64_t bytes = 0;
};

Task<Result<>> close_sources(Sources& sources) {
  Result<> first;
  for (const auto& disk : sources.disks) {
    auto closed = co_await disk->close();
    if (first && !closed) first = std::move(closed);
  }
  co_return first;
}

// What has been opened when it fails is for the caller to close.
Task<Result<>> open_sources(const Workshop& shop, const ConvertRequest& request, Sources& sources) {
  const OpenMode mode{.cache = request.source_cache, .force_share = request.force_share};
  for (const ImageName& name : request.sources) {
    auto spec = describe_image(shop, name, mode);
    if (!spec) co_return std::unexpected(std::move(spec.error()));
    if (!request.target_options && same_file(spec->file, request.target))
      co_return std::unexpected(same_file_error(request.target));
    auto opening = open_disk(shop, std::move(*spec));
    auto disk = co_await opening;
    if (!disk) co_return std::unexpected(std::move(disk.error()));
    const uint64_t size = (*disk)->size();
    sources.disks.push_back(std::move(*disk));
    if (size > kLargest - sources.bytes)
      co_return std::unexpected(Error::invalid("convert", "", "the sources together are too large"));
    sources.bytes += size;
  }
  if (sources.disks.size() == 1) {
    const uint64_t end = std::min(request.copy.end.value_or(sources.bytes), sources.bytes);
    sources.bytes = end - std::min(request.copy.begin, end);
  }
  co_return Result<>{};
}

Task<Result<>> copy_to(const Sources& sources, Disk& target, CopyOptions options, bool made,
                       Progress& progress) {
  if (target.size() < sources.bytes) {
    co_return std::unexpected(Error::invalid(
        "convert", target.id(),
        fmt::format("output file is smaller than input file: it has {} bytes, and {} are needed",
                    target.size(), sources.bytes)));
  }
  if (made && !options.target_is_zero) {
    auto zero = co_await reads_as_zeroes(target);
    if (!zero) co_return std::unexpected(std::move(zero.error()));
    options.target_is_zero = *zero;
  }
  JobProgress job(progress, sources.bytes);
  for (const auto& source : sources.disks) {
    auto copying = copy_disk(*source, target, options, job);
    SPINDLE_CO_TRY(co_await copying);
    options.target_offset += source->size();
  }
  job.finish();
  co_return Result<>{};
}

// The target's file once more, to ask the kernel to write its pages early; none where there are no pages, or
// where nobody asked for them to be written.
class WriteOutFile {
 public:
  WriteOutFile(const std::string& file, CacheMode cache) {
    const auto name = parse_file_name(file);
    if (!name || name->protocol != Protocol::File || is_direct(cache) || never_flushes(cache)) return;
    fd_ = ::open(name->path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  }
  WriteOutFile(const WriteOutFile&) = delete;
  WriteOutFile& operator=(const WriteOutFile&) = delete;
  ~WriteOutFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

// What has become of the target so far, for whoever cleans up.
struct Target {
  std::optional<NewFile> file = std::nullopt;
  bool overwritten = false;
};

Task<Result<>> make_target(const Workshop& shop, const ConvertRequest& request, uint64_t source_size,
                           Target& target) {
  const auto format = format_to_create(shop.formats, request.target_format);
  if (!format) co_return std::unexpected(format.error());
  auto options = options_to_create(request, **format, source_size);
  if (!options) co_return std::unexpected(std::move(options.error()));
  auto made = NewFile::make(request.target);
  if (!made) co_return std::unexpected(std::move(made.error()));
  target.file.emplace(std::move(*made));
  // What the format writes now is flushed with everything else at the end.
  auto node = open_to_format(shop, **format, request.target, CacheMode::Unsafe);
  if (!node) co_return std::unexpected(std::move(node.error()));
  target.overwritten = true;
  auto formatting = format_file(**format, std::move(*node), std::move(*options));
  co_return co_await formatting;
}

Task<Result<>> write_target(const Workshop& shop, const ConvertRequest& request, const Sources& sources,
                            Target& state, Progress& progress) {
  if (!request.keep_target) SPINDLE_CO_TRY(co_await make_target(shop, request, sources.bytes, state));
  // Without -n nothing of what the page cache holds was there before.
  const OpenMode mode{.write = true, .cache = request.target_cache, .drop_cache = request.keep_target};
  auto spec = describe_image(shop, target_name(request), mode);
  if (!spec) co_return std::unexpected(std::move(spec.error()));
  // A list of options can name the source, too, and with locking=off nothing else would keep it out.
  for (const auto& source : sources.disks) {
    if (same_file(source->id(), spec->file)) co_return std::unexpected(same_file_error(spec->file));
  }
  spec->throttling.rates[static_cast<std::size_t>(ThrottleKind::BpsWrite)].average = request.rate;
  const std::string spec_file = spec->file;
  auto opening = open_disk(shop, std::move(*spec));
  auto target = co_await opening;
  if (!target) co_return std::unexpected(std::move(target.error()));
  const WriteOutFile write_out(spec_file, request.target_cache);
  CopyOptions options = request.copy;
  options.write_out = write_out.fd();
  auto copying = copy_to(sources, **target, options, !request.keep_target, progress);
  auto copied = co_await copying;
  // Also if nothing was copied, since what made the image has not flushed.
  if (copied) copied = co_await (*target)->flush();
  auto closed = co_await (*target)->close();
  if (!copied) co_return copied;
  if (!closed) co_return closed;
  co_return Result<>{};
}

}  // namespace

Task<Result<>> convert_image(const Workshop& shop, ConvertRequest request, Progress& progress) {
  Sources sources;
  auto opening = open_sources(shop, request, sources);
  auto done = co_await opening;
  Target target;
  if (done) {
    auto writing = write_target(shop, request, sources, target, progress);
    done = co_await writing;
  }
  if (done && target.file) done = target.file->keep(!never_flushes(request.target_cache));
  if (!done && target.overwritten && !target.file->made()) {
    shop.notes.push_back(request.target +
                         ": it was there before, what it held is lost, and what it holds now is not whole");
  }
  auto closed = co_await close_sources(sources);
  if (!done) co_return done;
  co_return closed;
}

}  // namespace spindle::image
