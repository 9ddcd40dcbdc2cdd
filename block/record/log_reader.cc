#include "block/record/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace spindle::record {
namespace {

constexpr std::size_t kPiece = 1 << 20;
constexpr const char* kOperation = "read of";

}  // namespace

LogReader::LogReader(std::string path, int fd, uint64_t size)
    : path_(std::move(path)), fd_(fd), size_(size) {}

LogReader::~LogReader() {
  close(fd_);
}

Result<std::unique_ptr<LogReader>> LogReader::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return std::unexpected(Error::from_errno(errno, "open", path));
  struct stat there {};
  if (fstat(fd, &there) != 0) {
    const int number = errno;
    close(fd);
    return std::unexpected(Error::from_errno(number, "open", path));
  }
  const uint64_t size = S_ISREG(there.st_mode) ? static_cast<uint64_t>(there.st_size) : 0;
  std::unique_ptr<LogReader> reader(new LogReader(path, fd, size));
  HeaderBytes bytes{};
  if (reader->size_ >= kHeaderBytes) SPINDLE_TRY(reader->read(0, bytes));
  const auto header = decode_header(bytes);
  if (!header) {
    return std::unexpected(Error::invalid(
        "open", path, "it is no log that record= of this version has made (see docs/recording.md)"));
  }
  reader->header_ = *header;
  reader->at_ = kHeaderBytes;
  return reader;
}

Result<bool> LogReader::next(Entry& entry) {
  if (end_ == LogEnd::Closed || size_ - at_ < kEntryBytes) return false;
  EntryBytes bytes;
  SPINDLE_TRY(read(at_, bytes));
  const auto decoded = decode_entry(bytes);
  if (!decoded) return false;
  auto fits = content_fits(bytes, *decoded);
  if (!fits || !*fits) return fits;
  entry = decoded->entry;
  content_at_ = at_ + kEntryBytes;
  at_ = content_at_ + (entry.content() + kPadding - 1) / kPadding * kPadding;
  at_ = std::min(at_, size_);
  if (entry.type == EntryType::Close) end_ = LogEnd::Closed;
  return true;
}

// Whether the content is there, and all of the entry is what its writer sealed.
Result<bool> LogReader::content_fits(const EntryBytes& bytes, const Decoded& decoded) const {
  const uint64_t begin = at_ + kEntryBytes, length = decoded.entry.content();
  if (length > size_ - begin) return false;
  EntryBytes unsealed = bytes;
  seal(unsealed, 0);
  uint32_t check = check_of(unsealed);
  std::vector<std::byte> piece(std::min<uint64_t>(length, kPiece));
  for (uint64_t done = 0; done < length;) {
    const std::span part = std::span(piece).first(std::min<uint64_t>(length - done, kPiece));
    SPINDLE_TRY(read(begin + done, part));
    check = check_of(check, part);
    done += part.size();
  }
  return check == decoded.check;
}

Result<> LogReader::read(uint64_t at, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::unexpected(Error::from_errno(errno, kOperation, path_, at));
    if (got == 0) {
      Error error = Error::from_errno(EIO, kOperation, path_, at);
      error.detail = "the file has become shorter";
      return std::unexpected(std::move(error));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    at += static_cast<uint64_t>(got);
  }
  return {};
}

}  // namespace spindle::record
