#include "vmm/boot_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace spindle::vmm {

Result<BootFile> BootFile::open(const std::string& path, const std::string& what) {
  // O_NONBLOCK: opening a FIFO by mistake must not hang before it is refused below.
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    const int number = errno;
    Error error = Error::from_errno(number, "open", what + " " + path);
    error.detail = number == ENOENT ? "there is no such file; check the path" : "the file must be readable";
    return std::unexpected(std::move(error));
  }
  struct stat status {};
  if (fstat(fd.get(), &status) < 0)
    return std::unexpected(Error::from_errno(errno, "stat", what + " " + path));
  const bool regular = S_ISREG(status.st_mode);
  BootFile file(std::move(fd), path, what, regular ? static_cast<uint64_t>(status.st_size) : 0);
  if (!regular) return file.bad("not a regular file");
  if (file.size_ == 0) return file.bad("the file is empty");
  return file;
}

Result<> BootFile::read(uint64_t offset, std::span<uint8_t> bytes) const {
  if (offset > size_ || bytes.size() > size_ - offset) return bad("the file is truncated");
  while (!bytes.empty()) {
    const ssize_t got = pread(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::unexpected(Error::from_errno(errno, "read", what_ + " " + path_, offset));
    if (got == 0) return bad("the file is truncated");
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return {};
}

std::unexpected<Error> BootFile::bad(std::string detail) const {
  return std::unexpected(
      Error{.kind = ErrorKind::Invalid, .operation = what_ + " " + path_, .detail = std::move(detail)});
}

}  // namespace spindle::vmm
