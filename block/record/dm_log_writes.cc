#include "block/record/dm_log_writes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <unordered_set>
#include <vector>

#include "block/little_endian.h"

namespace spindle::record {
namespace {

constexpr uint64_t kMagicNumber = 0x6a736677736872;  // struct log_write_super
constexpr uint64_t kFormatVersion = 1;
constexpr uint64_t kSector = 512;
// struct log_write_entry, flags
constexpr uint64_t kFlush = 1, kFua = 2, kDiscard = 4, kMark = 8;
constexpr uint64_t kHeadBytes = 32;
constexpr uint64_t kMostInAMark = kSector - kHeadBytes;
constexpr uint64_t kPiece = 1 << 20;
// Each entry of zeroes takes a block of the file system, however little it says; a replay may hold it in
// memory.
constexpr uint64_t kMostZeroes = 1 << 30;
constexpr uint64_t kMostDeviceBytes = 1ull << 48;  // what a log claims beyond is no disk
constexpr const char* kBaseMark = "spindle-base";

// The file, with its buffer.
class Output {
 public:
  explicit Output(std::string path) : path_(std::move(path)) {}
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    if (fd_ < 0) return;
    close(fd_);
    if (!finished_) unlink(path_.c_str());
  }

  Result<> create() {
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) return failed("create");
    buffer_.resize(kSector);  // finish() has its content
    return {};
  }
  Result<> append(std::span<const std::byte> bytes) {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    if (buffer_.size() < kPiece) return {};
    return spill();
  }
  Result<> head(uint64_t offset, uint64_t length, uint64_t flags, std::span<const std::byte> label = {}) {
    std::array<std::byte, kSector> sector{};
    put64(&sector[0], offset / kSector);
    put64(&sector[8], length / kSector);
    put64(&sector[16], flags);
    put64(&sector[24], label.size());
    std::copy_n(label.begin(), label.size(), sector.begin() + kHeadBytes);
    ++entries_;
    return append(sector);
  }
  /// A hole.
  Result<> zeroes(uint64_t length) {
    SPINDLE_TRY(spill());
    if (length > static_cast<uint64_t>(INT64_MAX) - at_)
      return std::unexpected(Error::from_errno(EFBIG, "write", path_));
    at_ += length;
    return {};
  }
  uint64_t entries() const { return entries_; }

  Result<> finish() {
    SPINDLE_TRY(spill());
    if (ftruncate(fd_, static_cast<off_t>(at_)) != 0) return failed("resize");
    std::array<std::byte, kSector> super{};
    put64(&super[0], kMagicNumber);
    put64(&super[8], kFormatVersion);
    put64(&super[16], entries_);
    put64(&super[24], kSector);  // 32 bits, and nothing behind them
    at_ = 0;
    buffer_.assign(super.begin(), super.end());
    SPINDLE_TRY(spill());
    if (fsync(fd_) != 0) return failed("fsync");
    finished_ = true;
    return {};
  }

 private:
  std::unexpected<BoxedError> failed(const char* operation) const {
    return std::unexpected<BoxedError>(Error::from_errno(errno, operation, path_));
  }
  Result<> spill() {
    for (std::size_t done = 0; done < buffer_.size();) {
      const ssize_t put = pwrite(fd_, buffer_.data() + done, buffer_.size() - done, static_cast<off_t>(at_));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return failed("write");
      done += static_cast<std::size_t>(put);
      at_ += static_cast<uint64_t>(put);
    }
    buffer_.clear();
    return {};
  }

  std::string path_;
  int fd_ = -1;
  bool finished_ = false;
  std::vector<std::byte> buffer_;
  uint64_t at_ = 0;
  uint64_t entries_ = 0;
};

class Export {
 public:
  Export(const LogReader& log, Output& output) : log_(log), output_(output) {
    summary_.device_bytes = log.header().size;
  }

  Result<> base(const Entry& entry) {
    SPINDLE_TRY(check(entry));
    return data(entry, log_.content_at(), 0);
  }
  Result<> base_ends() { return mark(std::as_bytes(std::span(kBaseMark, std::strlen(kBaseMark)))); }

  Result<> submitted(const Entry& entry, bool flush_succeeds) {
    if (entry.operation == Operation::Flush) {
      if (!flush_succeeds) return {};
      ++summary_.flushes;
      return output_.head(0, 0, kFlush);
    }
    if (entry.operation == Operation::Resize) {
      summary_.device_bytes = std::max(summary_.device_bytes, entry.length);
    } else {
      SPINDLE_TRY(check(entry));
    }
    in_flight_.insert_or_assign(entry.id, InFlight{entry, log_.content_at()});
    return {};
  }
  Result<> completed(const Entry& entry) {
    const auto found = in_flight_.find(entry.id);
    if (found == in_flight_.end()) {  // a flush, or a log that contradicts itself
      summary_.failed += entry.error != 0;
      return {};
    }
    const InFlight operation = found->second;
    in_flight_.erase(found);
    if (entry.error == 0) return reached(operation);
    ++summary_.failed;
    return {};
  }
  Result<> mark(std::span<const std::byte> label) {
    return output_.head(0, 0, kMark, label.first(std::min<std::size_t>(label.size(), kMostInAMark)));
  }
  Result<> mark(const Entry& entry) {
    std::vector<std::byte> label(std::min(entry.length, kMostInAMark));
    SPINDLE_TRY(log_.read(log_.content_at(), label));
    return mark(label);
  }
  Result<> ended() {
    for (const auto& [id, operation] : in_flight_) {
      ++summary_.unfinished;
      SPINDLE_TRY(reached(operation));
    }
    return {};
  }
  ExportSummary& summary() { return summary_; }

 private:
  struct InFlight {
    Entry entry;
    uint64_t content_at = 0;
  };

  // Sums of offset and length do not overflow: the reader has seen to that.
  Result<> check(const Entry& entry) const {
    if (summary_.device_bytes > kMostDeviceBytes) {
      return std::unexpected(Error::invalid(
          "export", log_.path(), fmt::format("{} bytes are no size of a disk", summary_.device_bytes)));
    }
    if (entry.offset + entry.length > summary_.device_bytes) {
      return std::unexpected(
          Error::invalid("export", log_.path(),
                         fmt::format("an operation has {} bytes at offset {}, beyond any size the file had: "
                                     "the log contradicts itself",
                                     entry.length, entry.offset)));
    }
    if (entry.offset % kSector == 0 && entry.length % kSector == 0) return {};
    Error error = Error::invalid(
        "export", log_.path(),
        fmt::format(
            "an operation has {} bytes at offset {}, which are no whole sectors of 512; dm-log-writes "
            "cannot say that",
            entry.length, entry.offset));
    return std::unexpected(std::move(error));
  }

  Result<> reached(const InFlight& operation) {
    const Entry& entry = operation.entry;
    const uint64_t flags = entry.fua ? kFua : 0;
    switch (entry.operation) {
      case Operation::Write:
        ++summary_.writes;
        return data(entry, operation.content_at, flags);
      case Operation::WriteZeroes:
        ++summary_.writes;
        return zeroes(entry.offset, entry.length, flags);
      case Operation::Discard:
        ++summary_.writes;
        return output_.head(entry.offset, entry.length, kDiscard);
      case Operation::Resize:
        if (entry.length >= entry.offset) return {};
        return cut_off(entry.length, entry.offset);
      case Operation::Flush:
      case Operation::None:
        break;
    }
    return {};
  }

  Result<> data(const Entry& entry, uint64_t from, uint64_t flags) {
    if (entry.length == 0) return {};
    SPINDLE_TRY(output_.head(entry.offset, entry.length, flags));
    std::vector<std::byte> piece(std::min(entry.length, kPiece));
    for (uint64_t done = 0; done < entry.length;) {
      const auto part = std::span(piece).first(std::min(entry.length - done, kPiece));
      SPINDLE_TRY(log_.read(from + done, part));
      SPINDLE_TRY(output_.append(part));
      done += part.size();
    }
    return {};
  }
  Result<> zeroes(uint64_t offset, uint64_t length, uint64_t flags) {
    for (uint64_t done = 0; done < length;) {
      const uint64_t part = std::min(length - done, kMostZeroes);
      SPINDLE_TRY(output_.head(offset + done, part, flags));
      SPINDLE_TRY(output_.zeroes(part));
      done += part;
    }
    return {};
  }
  // What a sector still holds of the file, its neighbours' end has said already.
  Result<> cut_off(uint64_t begin, uint64_t end) {
    const uint64_t first = (begin + kSector - 1) / kSector * kSector, last = end / kSector * kSector;
    if (first >= last) return {};
    return output_.head(first, last - first, kDiscard);
  }

  const LogReader& log_;
  Output& output_;
  std::map<uint64_t, InFlight> in_flight_;
  ExportSummary summary_;
};

Result<std::unordered_set<uint64_t>> flushes_that_succeed(const std::string& path) {
  auto log = LogReader::open(path);
  if (!log) return std::unexpected(std::move(log.error()));
  std::unordered_set<uint64_t> found;
  for (Entry entry;;) {
    auto more = (*log)->next(entry);
    if (!more) return std::unexpected(std::move(more.error()));
    if (!*more) return found;
    if (entry.type == EntryType::Complete && entry.operation == Operation::Flush && entry.error == 0)
      found.insert(entry.id);
  }
}

Result<> convert(LogReader& log, const std::unordered_set<uint64_t>& flushes, Export& work) {
  bool in_base = true;
  for (Entry entry;;) {
    auto more = log.next(entry);
    if (!more) return std::unexpected(std::move(more.error()));
    if (in_base && (!*more || entry.type != EntryType::Base)) {
      in_base = false;
      SPINDLE_TRY(work.base_ends());
    }
    if (!*more) return work.ended();
    Result<> done;
    if (entry.type == EntryType::Base) done = work.base(entry);
    if (entry.type == EntryType::Submit) done = work.submitted(entry, flushes.contains(entry.id));
    if (entry.type == EntryType::Complete) done = work.completed(entry);
    if (entry.type == EntryType::Mark) done = work.mark(entry);
    if (!done) return done;
  }
}

}  // namespace

Result<ExportSummary> export_dm_log_writes(const std::string& log_path, const std::string& output_path) {
  auto flushes = flushes_that_succeed(log_path);
  if (!flushes) return std::unexpected(std::move(flushes.error()));
  auto log = LogReader::open(log_path);
  if (!log) return std::unexpected(std::move(log.error()));
  Output output(output_path);
  SPINDLE_TRY(output.create());
  Export work(**log, output);
  SPINDLE_TRY(convert(**log, *flushes, work));
  SPINDLE_TRY(output.finish());
  work.summary().entries = output.entries();
  work.summary().end = (*log)->end();
  return work.summary();
}

}  // namespace spindle::record
