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
  HeaderBytes first{};
  const bool known = fstat(fd, &there) == 0 && S_ISREG(there.st_mode) &&
                     (there.st_size == 0 ||
                      (pread(fd, first.data(), first.size(), 0) == static_cast<ssize_t>(first.size()) &&
                       decode_header(first)));
  close(fd);
  if (known) return {};
  return std::unexpected(
      Error::invalid(kOperation, path, "it holds something that is no log; choose another name"));
}

}  // namespace

LogWriter::LogWriter(std::shared_ptr<Node> file) : file_(std::move(file)), writing_(file_->reactor()) {}

Task<Result<std::unique_ptr<LogWriter>>> LogWriter::create(Reactor& reactor, std::string path,
                                                           Header header) {
  if (auto prepared = prepare(path); !prepared) co_return std::unexpected(std::move(prepared.error()));
  auto file = FileNode::open(reactor, {.path = path, .grows = true, .locking = LockPolicy::On});
  if (!file) co_return std::unexpected(std::move(file.error()));
  auto creating = create(std::shared_ptr<Node>(std::move(*file)), header);
  co_return co_await creating;
}

Task<Result<std::unique_ptr<LogWriter>>> LogWriter::create(std::shared_ptr<Node> file, Header header) {
  std::unique_ptr<LogWriter> writer(new LogWriter(std::move(file)));
  auto bytes = encode(header);
  const iovec part{bytes.data(), bytes.size()};
  auto begun = co_await writer->file_->resize(0);
  if (begun) begun = co_await writer->write(std::span(&part, 1));
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

Task<Result<>> LogWriter::append(Entry entry, std::span<const std::byte> content) {
  EntryBytes bytes = encode(timed(entry));
  seal(bytes, check_of(check_of(bytes), content));
  // A write does not change its buffers; iovec has no const.
  const std::array<iovec, 3> parts = {
      {{bytes.data(), bytes.size()},
       {const_cast<std::byte*>(content.data()), content.size()},
       {const_cast<std::byte*>(kZeroes.data()), (kPadding - content.size() % kPadding) % kPadding}}};
  Turns::Turn turn(writing_);
  co_await turn;
  if (failure_) co_return std::unexpected(*failure_);
  co_return co_await write(parts);
}

// The caller has the turn.
Task<Result<>> LogWriter::write(std::span<const iovec> parts) {
  const Buffers buffers(parts);
  if (end_ + buffers.size > file_->size()) {
    auto grown = co_await file_->resize(end_ + buffers.size + kGrowth);
    if (!grown) co_return failed(*grown.error());
  }
  auto written = co_await file_->write(end_, buffers, WriteFlags{});
  if (!written) co_return failed(*written.error());
  end_ += buffers.size;
  co_return written;
}

Result<> LogWriter::failed(const Error& error) {
  failure_ = error;
  failure_->kind = ErrorKind::Io;
  failure_->operation = kOperation;
  failure_->node = file_->facts().name;
  failure_->detail = "the log ends here, and its disk takes no more writes";
  return std::unexpected(*failure_);
}

Task<Result<>> LogWriter::close(bool in_order) {
  Result<> result;
  if (in_order) result = co_await append({.type = EntryType::Close});
  if (result) result = co_await file_->resize(end_);
  auto closed = co_await file_->close();
  if (result && !closed) result = std::move(closed);
  co_return result;
}

}  // namespace spindle::record
