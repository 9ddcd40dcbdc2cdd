#include "block/protocols/file_node.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "block/protocols/file_probe.h"

namespace spindle {
namespace {

Error open_error(int number, const FileNode::Options& options) {
  Error error = Error::from_errno(number, "open", options.path);
  switch (number) {
    case ENOENT:
      error.detail = "there is no such file; create it with spindle img create";
      break;
    case EACCES:
    case EPERM:
      error.detail = options.read_only ? "you may not read it"
                                       : "you may not write it; give readonly=on to only read it";
      break;
    case EROFS:
      error.detail = "its file system is mounted read-only; give readonly=on";
      break;
    case ETXTBSY:
      error.detail = "it is being executed";
      break;
    case EINVAL:
      if (options.direct)
        error.detail = "its file system cannot do O_DIRECT; use cache=writeback or cache=writethrough";
      break;
    default:
      break;
  }
  return error;
}

}  // namespace

FileNode::FileNode(Reactor& reactor, Options options, int fd)
    : Node(reactor), options_(std::move(options)), fd_(fd), ranges_(reactor), bounce_(reactor) {}

FileNode::~FileNode() {
  unregister();
  if (lock_fd_ >= 0) ::close(lock_fd_);
  if (tail_fd_ >= 0) ::close(tail_fd_);
  if (witness_fd_ >= 0) ::close(witness_fd_);
  if (fua_fd_ >= 0) ::close(fua_fd_);
  if (fd_ >= 0) ::close(fd_);
}

void FileNode::unregister() {
  if (slot_ >= 0) reactor().unregister_file(std::exchange(slot_, -1));
}

Result<std::shared_ptr<FileNode>> FileNode::open(Reactor& reactor, Options options) {
  // The kind is looked at before opening: to open a FIFO may wait for its other end, to open a device may do
  // something.
  struct stat status {};
  if (::stat(options.path.c_str(), &status) != 0) return std::unexpected(open_error(errno, options));
  if (auto kind = kind_of_file(status, options.path); !kind) return std::unexpected(std::move(kind.error()));

  const int flags = (options.read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | (options.direct ? O_DIRECT : 0);
  int fd;
  do {
    fd = ::open(options.path.c_str(), flags);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return std::unexpected(open_error(errno, options));
  auto node = std::shared_ptr<FileNode>(new FileNode(reactor, std::move(options), fd));
  SPINDLE_TRY(node->setup());
  node->options_.warn = nullptr;  // whom to tell may be gone once this returns
  return node;
}

Result<> FileNode::setup() {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) return std::unexpected(Error::from_errno(errno, "open", options_.path));
  auto kind = kind_of_file(status, options_.path);
  if (!kind) return std::unexpected(std::move(kind.error()));
  block_device_ = kind->block_device;
  if (block_device_ && !options_.read_only) {
    int read_only = 0;
    if (ioctl(fd_, BLKROGET, &read_only) == 0 && read_only != 0) {
      return std::unexpected(Error{.kind = ErrorKind::ReadOnly,
                                   .operation = "open",
                                   .node = options_.path,
                                   .detail = "the block device is read-only; give readonly=on"});
    }
  }
  if (options_.locking != LockPolicy::Off) {
    auto lock_fd = reopen(fd_, O_RDONLY, options_.path);
    if (!lock_fd) return std::unexpected(std::move(lock_fd.error()));
    lock_fd_ = *lock_fd;
    SPINDLE_TRY(lock_image(lock_fd_, options_.path, lock_bits(options_.read_only, options_.grows),
                           options_.locking, options_.warn));
  }
  auto size = size_of_file(fd_, block_device_, options_.path);
  if (!size) return std::unexpected(std::move(size.error()));
  size_ = *size;

  if (options_.drop_cache) {
    if (const int number = ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED)) {
      return std::unexpected(Error::from_errno(number, "drop the page cache", options_.path));
    }
  }

  facts_.name = options_.path;
  if (options_.direct) {
    const auto alignment = direct_alignment(fd_, block_device_);
    facts_.request_alignment = alignment.request;
    facts_.memory_alignment = alignment.memory;
  }
  facts_.discard_granularity = kind->block_size;
  facts_.supports_fua = true;
  facts_.supports_zeroes = true;
  facts_.read_only = options_.read_only;
  facts_.rotational = kind->rotational;
  SPINDLE_TRY(open_tail());
  if (!options_.read_only) {
    auto fua_fd = reopen(fd_, O_RDWR | (options_.direct ? O_DIRECT : 0), options_.path);
    if (!fua_fd) return std::unexpected(std::move(fua_fd.error()));
    fua_fd_ = *fua_fd;
    auto witness_fd = reopen(fd_, O_RDONLY, options_.path);
    if (!witness_fd) return std::unexpected(std::move(witness_fd.error()));
    witness_fd_ = *witness_fd;
  }
  slot_ = reactor().register_file(fd_);
  return {};
}

Result<> FileNode::open_tail() {
  if (tail_fd_ >= 0 || options_.read_only || down(size_) == size_) return {};
  auto fd = reopen(fd_, O_RDWR, options_.path);
  if (!fd) return std::unexpected(std::move(fd.error()));
  tail_fd_ = *fd;
  return {};
}

Error FileNode::error_of(int negative_errno, const char* operation, uint64_t offset) const {
  return Error::from_errno(-negative_errno, operation, options_.path, offset);
}

Task<Result<>> FileNode::datasync(int fd) {
  int result;
  do {
    ++counters_.fdatasyncs;
    result = co_await reactor().submit([&](io_uring_sqe* sqe) {
      io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
      if (fd == fd_) by_slot(sqe);
    });
  } while (result == -EINTR);
  if (result < 0) co_return std::unexpected(error_of(result, "fdatasync", 0));
  co_return Result<>{};
}

Task<Result<>> FileNode::flush() {
  if (options_.never_flush) co_return Result<>{};
  auto result = co_await datasync(fd_);
  // Whatever the host gives as the reason, ENOSPC too: that is no ordinary request error here (D6).
  if (!result) result.error()->kind = ErrorKind::FlushFailed;
  co_return result;
}

Task<Result<Extent>> FileNode::map(uint64_t offset, uint64_t length) {
  SPINDLE_CO_TRY(check_range("map", offset, length));
  Extent extent{.offset = offset, .length = length, .data = true, .file_offset = offset};
  if (length == 0) co_return extent;
  const off_t data = ::lseek(fd_, static_cast<off_t>(offset), SEEK_DATA);
  if (data < 0 && errno == ENXIO) {  // nothing but a hole up to the end
    extent.data = false;
    extent.zero = true;
    co_return extent;
  }
  if (data < 0) {
    // EINVAL: the file system does not know; then all of it is data.
    if (errno == EINVAL || errno == EOPNOTSUPP) co_return extent;
    co_return std::unexpected(error_of(-errno, "map", offset));
  }
  if (static_cast<uint64_t>(data) > offset) {
    extent.data = false;
    extent.zero = true;
    extent.length = std::min<uint64_t>(length, static_cast<uint64_t>(data) - offset);
    co_return extent;
  }
  const off_t hole = ::lseek(fd_, data, SEEK_HOLE);
  if (hole < 0 && errno != EINVAL && errno != ENXIO)
    co_return std::unexpected(error_of(-errno, "map", offset));
  // A hole at `offset` itself, or none, means that somebody changed the file between the two calls: data is
  // the answer that is never wrong.
  if (hole > 0 && static_cast<uint64_t>(hole) > offset) {
    extent.length = std::min<uint64_t>(length, static_cast<uint64_t>(hole) - offset);
  }
  co_return extent;
}

Task<Result<>> FileNode::resize(uint64_t size) {
  if (options_.read_only) co_return std::unexpected(error_of(-EROFS, "resize", 0));
  if (size > static_cast<uint64_t>(std::numeric_limits<off_t>::max())) {
    co_return std::unexpected(error_of(-EFBIG, "resize", 0));
  }
  if (block_device_) {
    if (size == size_) co_return Result<>{};
    co_return std::unexpected(
        Error{.kind = ErrorKind::NotSupported,
              .operation = "resize",
              .node = options_.path,
              .detail = fmt::format("a block device cannot be resized from here; it has {} bytes", size_)});
  }
  // The size may change while this waits for another resize; that one held from its smaller size on, and
  // whatever it leaves, this one's range must reach down to it. So everything from the start on is taken if
  // both meet.
  const uint64_t from = resizing_ == 0 ? std::min(size, size_) : 0;
  struct Resizing {
    unsigned& count;
    explicit Resizing(unsigned& c) : count(c) { ++count; }
    ~Resizing() { --count; }
  } resizing(resizing_);
  RangeLock::Hold hold(ranges_, down(from), std::numeric_limits<uint64_t>::max(), RangeLock::Mode::Exclusive);
  co_await hold;
  int result;
  do {
    result = ::ftruncate(fd_, static_cast<off_t>(size)) == 0 ? 0 : -errno;
  } while (result == -EINTR);
  if (result < 0) co_return std::unexpected(error_of(result, "resize", size));
  size_ = size;
  co_return open_tail();
}

Task<Result<>> FileNode::close() {
  Result<> result;
  unregister();
  // The lock goes last.
  const int fds[] = {std::exchange(tail_fd_, -1), std::exchange(witness_fd_, -1), std::exchange(fua_fd_, -1),
                     std::exchange(fd_, -1), std::exchange(lock_fd_, -1)};
  for (const int fd : fds) {
    // Linux frees the descriptor whatever close() returns.
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) result = std::unexpected(error_of(-errno, "close", 0));
  }
  co_return result;
}

}  // namespace spindle
