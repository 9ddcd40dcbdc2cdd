#include "block/record/log_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "block/protocols/file_node.h"

namespace spindle::record {
namespace {

constexpr uint64_t kGrowth = 16 << 20;
constexpr std::array<std::byte, kPadding> kZeroes{};
constexpr const char* kOperation = "record to";

// A regular file that nothing is lost by replacing. Made if it is not there.
Result<> prepare(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
  if (fd < 0) {
    Error error = Error::from_errno(errno, kOperation, path);
    if (error.kind == ErrorKind::NotFound) error.detail = "its directory must exist";
    return std::unexpected(std::move(error));
  }
  struct stat there {};
  std::array<char, kMagic.size()> first{};
  const bool known =
      fstat(fd, &there) == 0 && S_ISREG(there.st_mode) &&
      (there.st_size == 0 ||
       (pread(fd, first.data(), first.size(), 0) == static_cast<ssize_t>(first.size()) && first == kMagic));
  close(fd);
  if (known) return {};
  return std::unexpected(
      Error::invalid(kOperation, path, "it holds something that is no log; choose another name"));
}

}  // namespace

LogWriter::LogWriter(std::shared_ptr<Node> file, std::string path)
    : file_(std::move(file)), path_(std::move(path)), growing_(file_->reactor()) {}

Task<Result<std::unique_ptr<LogWriter>>> LogWriter::create(Reactor& reactor, std::string path,
                                                           Header header) {
  if (auto prepared = prepare(path); !prepared) co_return std::unexpected(std::move(prepared.error()));
  auto file = FileNode::open(reactor, {.path = path, .grows = true, .locking = LockPolicy::On});
  if (!file) co_return std::unexpected(std::move(file.error()));
  std::unique_ptr<LogWriter> writer(new LogWriter(std::move(*file), std::move(path)));
  auto bytes = encode(header);
  std::vector<iovec> parts(1, iovec{bytes.data(), bytes.size()});
  auto begun = co_await writer->file_->resize(0);
  if (begun) begun = co_await writer->write(std::move(parts), bytes.size());
  if (begun) co_return writer;
  static_cast<void>(co_await writer->file_->close());  // the first error is the one to tell
  co_return std::unexpected(std::move(begun.error()));
}

Entry LogWriter::timed(Entry entry) const {
  entry.time = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - began_)
          .count());
  return entry;
}

void LogWriter::note(const Entry& entry) {
  EntryBytes bytes = encode(timed(entry));
  seal(bytes, check_of(bytes));
  noted_.insert(noted_.end(), bytes.begin(), bytes.end());
}

Task<Result<>> LogWriter::append(Entry entry, std::span<const std::byte> content) {
  if (failure_) co_return std::unexpected(*failure_);
  EntryBytes bytes = encode(timed(entry));
  seal(bytes, check_of(check_of(bytes), content));
  std::vector<std::byte> lead = std::exchange(noted_, {});
  lead.insert(lead.end(), bytes.begin(), bytes.end());
  const uint64_t padding = (kPadding - content.size() % kPadding) % kPadding;
  std::vector<iovec> parts = {{lead.data(), lead.size()}};
  // A write does not change its buffers; iovec has no const.
  if (!content.empty()) parts.push_back({const_cast<std::byte*>(content.data()), content.size()});
  if (padding != 0) parts.push_back({const_cast<std::byte*>(kZeroes.data()), padding});
  co_return co_await write(std::move(parts), lead.size() + content.size() + padding);
}

Task<Result<>> LogWriter::write(std::vector<iovec> parts, uint64_t bytes) {
  const uint64_t at = end_;
  end_ += bytes;
  auto grown = co_await grow(at + bytes);
  if (!grown) co_return grown;
  auto written = co_await file_->write(at, Buffers(parts, bytes), WriteFlags{});
  if (!written) co_return failed(*written.error());
  co_return written;
}

Task<Result<>> LogWriter::grow(uint64_t needed) {
  if (needed <= file_->size()) co_return Result<>{};
  Turns::Turn turn(growing_);
  co_await turn;
  if (failure_) co_return std::unexpected(*failure_);
  if (needed <= file_->size()) co_return Result<>{};
  auto grown = co_await file_->resize(needed + kGrowth);
  if (!grown) co_return failed(*grown.error());
  co_return grown;
}

Result<> LogWriter::failed(const Error& error) {
  if (!failure_) {
    failure_ = error;
    failure_->operation = kOperation;
    failure_->node = path_;
    failure_->detail = "the log ends here, and its disk takes no more writes";
  }
  return std::unexpected(*failure_);
}

Task<Result<>> LogWriter::close() {
  auto result = co_await append({.type = EntryType::Close});
  if (result) result = co_await file_->resize(end_);
  auto closed = co_await file_->close();
  if (result && !closed) result = std::move(closed);
  co_return result;
}

}  // namespace spindle::record
