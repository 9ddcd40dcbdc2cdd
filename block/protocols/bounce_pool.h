// BouncePool: aligned buffers for the transfers under O_DIRECT that cannot go from the guest's memory
// directly.
//
// Bound: kBuffers buffers of kBufferBytes each per pool (one pool per file node), 8 MiB. They are allocated
// when first needed and kept. An operation holds one at a time and moves more than that in pieces; if all are
// in use it waits, first come, first served. Holders never wait for anything but the kernel, so the wait
// ends.
//
// Threading: the node's reactor only.
#pragma once

#include <sys/uio.h>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "block/io/reactor.h"
#include "block/node.h"

namespace spindle {

class BouncePool {
 public:
  static constexpr std::size_t kBufferBytes = 128 << 10;
  static constexpr std::size_t kBuffers = 64;

  explicit BouncePool(Reactor& reactor) : reactor_(reactor) {}
  BouncePool(const BouncePool&) = delete;
  BouncePool& operator=(const BouncePool&) = delete;
  ~BouncePool();

  /// One buffer of kBufferBytes, aligned to a page. Goes back to the pool with its destructor. `data()` is
  /// null if the host had no memory for it.
  class Buffer {
   public:
    explicit Buffer(BouncePool& pool) : pool_(pool) {}
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer();

    bool await_ready() { return (data_ = pool_.try_take()) != nullptr || pool_.out_of_memory(); }
    void await_suspend(std::coroutine_handle<> waiter) { pool_.waiters_.push_back({this, waiter}); }
    void await_resume() const noexcept {}

    std::byte* data() const { return data_; }

   private:
    friend class BouncePool;
    BouncePool& pool_;
    std::byte* data_ = nullptr;
  };

  std::size_t allocated() const { return allocated_; }

 private:
  struct Waiter {
    Buffer* buffer;
    std::coroutine_handle<> handle;
  };

  std::byte* try_take();
  bool out_of_memory() const { return allocated_ == 0; }

  Reactor& reactor_;
  std::vector<std::byte*> free_;
  std::size_t allocated_ = 0;
  std::deque<Waiter> waiters_;
};

/// Copies `length` bytes that start `position` bytes into `buffers` to or from `flat`.
void copy_from(const Buffers& buffers, uint64_t position, std::byte* flat, std::size_t length);
void copy_to(const Buffers& buffers, uint64_t position, const std::byte* flat, std::size_t length);
/// Zeroes `length` bytes of `buffers` from `position` on.
void zero_in(const Buffers& buffers, uint64_t position, uint64_t length);
/// Names the memory of `buffers` from `position` on, `length` bytes or less: at most `max_parts` parts.
/// Returns how many bytes they hold.
uint64_t slice(const Buffers& buffers, uint64_t position, uint64_t length, std::size_t max_parts,
               std::vector<iovec>& parts);

}  // namespace spindle
