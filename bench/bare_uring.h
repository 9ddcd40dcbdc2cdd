// The yardstick: the least code that keeps `depth` operations of one size in flight on a file with liburing.
// No layers, no coroutines, no guest memory; buffers and offsets are made beforehand. With `registered` the
// file is registered with the ring, as Spindle's is: without it the loop is as plain as can be, with it there
// is nothing that only one of the two has.
#pragma once

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

namespace spindle::bench {

/// Offsets of a random walk over a file, shared by every contender so that all touch the same pages in the
/// same order.
inline std::vector<uint64_t> random_offsets(uint64_t file_size, uint32_t block) {
  std::mt19937_64 random(42);
  std::vector<uint64_t> offsets(1 << 16);
  for (uint64_t& offset : offsets) offset = random() % (file_size / block) * block;
  return offsets;
}

/// Whether the yardstick runs before what is measured; scripts/bench turns it round from one round to the
/// next.
inline bool bare_first() {
  return std::getenv("SPINDLE_BENCH_BARE_FIRST") != nullptr;
}

class BareUring {
 public:
  BareUring(const char* path, unsigned depth, uint32_t block, bool write, bool registered = false)
      : depth_(depth),
        block_(block),
        write_(write),
        registered_(registered),
        fd_(open(path, O_RDWR | O_CLOEXEC)) {
    io_uring_params params{};
    params.flags = IORING_SETUP_COOP_TASKRUN;
    if (fd_ < 0 || io_uring_queue_init_params(depth * 2, &ring_, &params) != 0) std::abort();
    if (registered && io_uring_register_files(&ring_, &fd_, 1) != 0) std::abort();
    memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(4096, static_cast<size_t>(depth) * block)));
    offsets_ = random_offsets(static_cast<uint64_t>(lseek(fd_, 0, SEEK_END)), block);
    for (unsigned slot = 0; slot < depth_; ++slot) queue(slot);
  }
  ~BareUring() {
    io_uring_submit_and_wait(&ring_, depth_);
    io_uring_queue_exit(&ring_);
    fdatasync(fd_);  // the next contender shall find the file as this one did
    close(fd_);
  }
  BareUring(const BareUring&) = delete;
  BareUring& operator=(const BareUring&) = delete;

  /// Runs until at least `count` operations have completed; returns how many did.
  uint64_t run(uint64_t count) {
    uint64_t done = 0;
    while (done < count) {
      io_uring_submit_and_wait(&ring_, 1);
      io_uring_cqe* cqe;
      unsigned head, reaped = 0;
      io_uring_for_each_cqe(&ring_, head, cqe) {
        if (cqe->res != static_cast<int>(block_)) std::abort();
        queue(static_cast<unsigned>(cqe->user_data));
        ++reaped;
      }
      io_uring_cq_advance(&ring_, reaped);
      done += reaped;
    }
    return done;
  }

 private:
  void queue(unsigned slot) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    const uint64_t offset = offsets_[next_++ % offsets_.size()];
    uint8_t* buffer = memory_.get() + static_cast<size_t>(slot) * block_;
    const int target = registered_ ? 0 : fd_;  // a slot, or the file
    if (write_) {
      io_uring_prep_write(sqe, target, buffer, block_, offset);
    } else {
      io_uring_prep_read(sqe, target, buffer, block_, offset);
    }
    if (registered_) sqe->flags |= IOSQE_FIXED_FILE;
    sqe->user_data = slot;
  }

  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  unsigned depth_;
  uint32_t block_;
  bool write_;
  bool registered_;
  int fd_;
  io_uring ring_{};
  std::unique_ptr<uint8_t, Free> memory_;
  std::vector<uint64_t> offsets_;
  uint64_t next_ = 0;
};

}  // namespace spindle::bench
