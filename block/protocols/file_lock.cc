#include "block/protocols/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace spindle {
namespace {

constexpr uint32_t kConsistentRead = 1u << 0;
constexpr uint32_t kWrite = 1u << 1;
constexpr uint32_t kResize = 1u << 3;
constexpr unsigned kPermissions = 4;  // bit 2 is write-unchanged, which nothing here needs
constexpr off_t kUsedBase = 100;
constexpr off_t kUnsharedBase = 200;

const char* name_of(unsigned permission) {
  static constexpr const char* kNames[kPermissions] = {"consistent read", "write", "write unchanged",
                                                       "resize"};
  return kNames[permission];
}

struct flock lock_of(short type, off_t byte) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

// 0, or an errno.
int take(int fd, off_t byte) {
  auto lock = lock_of(F_RDLCK, byte);
  while (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

// 0 if nobody else holds a lock on `byte`, EAGAIN if somebody does, or another errno.
int look(int fd, off_t byte) {
  auto lock = lock_of(F_WRLCK, byte);
  if (fcntl(fd, F_OFD_GETLK, &lock) != 0) return errno;
  return lock.l_type == F_UNLCK ? 0 : EAGAIN;
}

void release_all(int fd) {
  for (unsigned i = 0; i < kPermissions; ++i) {
    for (const off_t base : {kUsedBase, kUnsharedBase}) {
      auto lock = lock_of(F_UNLCK, base + i);
      // An unlock can only fail where a lock could not be taken either.
      static_cast<void>(fcntl(fd, F_OFD_SETLK, &lock));
    }
  }
}

// The outcome of one step: `number` as of take() and look(); which permission, and whether it was ours.
struct Failure {
  int number = 0;
  unsigned permission = 0;
};

Failure take_and_look(int fd, LockBits bits) {
  for (unsigned i = 0; i < kPermissions; ++i) {
    if (bits.used & (1u << i)) {
      if (const int number = take(fd, kUsedBase + i)) return {number, i};
    }
    if (bits.unshared & (1u << i)) {
      if (const int number = take(fd, kUnsharedBase + i)) return {number, i};
    }
  }
  for (unsigned i = 0; i < kPermissions; ++i) {
    if (bits.used & (1u << i)) {
      if (const int number = look(fd, kUnsharedBase + i)) return {number, i};
    }
    if (bits.unshared & (1u << i)) {
      if (const int number = look(fd, kUsedBase + i)) return {number, i};
    }
  }
  return {};
}

}  // namespace

LockBits lock_bits(bool read_only, bool grows) {
  LockBits bits{.used = kConsistentRead, .unshared = kWrite};
  if (!read_only) bits.used |= kWrite;
  if (!read_only && grows) {
    bits.used |= kResize;
    bits.unshared |= kResize;
  }
  return bits;
}

Result<> lock_image(int fd, const std::string& path, LockBits bits, LockPolicy policy,
                    const std::function<void(std::string)>& warn) {
  if (policy == LockPolicy::Off) return {};
  const Failure failure = take_and_look(fd, bits);
  if (failure.number == 0) return {};
  release_all(fd);
  if (failure.number == EAGAIN || failure.number == EACCES) {
    return std::unexpected(Error{
        .kind = ErrorKind::InUse,
        .operation = "open",
        .node = path,
        .detail =
            fmt::format("the image is in use already, by another process or as another disk of this one (its "
                        "\"{}\" lock is taken): stop that, open both with readonly=on, or give locking=off "
                        "if you are sure",
                        name_of(failure.permission))});
  }
  if (policy == LockPolicy::On) {
    Error error = Error::from_errno(failure.number, "lock", path);
    error.kind = ErrorKind::NotSupported;
    error.detail = "the file system has no OFD locks; give locking=auto to go on without";
    return std::unexpected(std::move(error));
  }
  if (warn) {
    warn(fmt::format(
        "{}: the file system has no OFD locks ({}); nothing keeps other programs from writing to it", path,
        std::strerror(failure.number)));
  }
  return {};
}

}  // namespace spindle
