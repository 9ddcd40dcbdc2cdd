// Doorbell: the eventfd of one queue. A driver's notification signals it, from KVM without an exit or from a
// vCPU thread that came out with the write, and the reactor watches it.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "block/result.h"

namespace spindle::virtio {

class Doorbell {
 public:
  static Result<Doorbell> create() {
    const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) return std::unexpected(Error::from_errno(errno, "eventfd", "doorbell"));
    return Doorbell(fd);
  }
  Doorbell(Doorbell&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Doorbell& operator=(Doorbell&&) = delete;
  ~Doorbell() {
    if (fd_ >= 0) ::close(fd_);
  }

  int fd() const { return fd_; }
  /// Any thread. The only way to fail is a counter that is full, and that one is signalled already.
  void ring() const { ::eventfd_write(fd_, 1); }

 private:
  explicit Doorbell(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace spindle::virtio
