// RangeLock: orders the modifications of one file where their order matters.
//
// Most modifications may run side by side, whatever they cover; nothing orders requests that are in flight
// together. Three kinds may not:
// - a read-modify-write under O_DIRECT writes bytes next to its own back as it read them, so no other write
//   may touch its blocks from its read to its write;
// - a write through the page cache to a file open with O_DIRECT, which the kernel makes a read-modify-write
//   of whole pages;
// - a growth or a cut of the file, because no data write may be in flight at or beyond the size at its start
//   (DESIGN 3, "Growing a file").
// These take their range exclusively. An entry waits for every earlier entry that overlaps it if one of the
// two is exclusive; so waiting is first come, first served where ranges meet, and nothing starves.
//
// The entries live in the frames of the operations, in a list in order of arrival: with no exclusive entry
// about, taking and releasing is linking and unlinking, and allocates nothing.
//
// Threading: the node's reactor only.
#pragma once

#include <coroutine>
#include <cstdint>

#include "block/io/reactor.h"

namespace spindle {

class RangeLock {
 public:
  enum class Mode : uint8_t { Shared, Exclusive };

  explicit RangeLock(Reactor& reactor) : reactor_(reactor) {}
  RangeLock(const RangeLock&) = delete;
  RangeLock& operator=(const RangeLock&) = delete;

  /// A modification of [begin, end) in flight. Linked by its constructor, which settles its place in the
  /// order; `co_await hold` returns when its turn has come. Unlinked by its destructor.
  class Hold {
   public:
    Hold(RangeLock& lock, uint64_t begin, uint64_t end, Mode mode);
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold();

    bool await_ready() const { return lock_.exclusive_ == 0 || !blocked(); }
    void await_suspend(std::coroutine_handle<> waiter) {
      waiter_ = waiter;
      ++lock_.waiting_;
    }
    void await_resume() const noexcept {}

   private:
    friend class RangeLock;
    bool blocked() const;

    RangeLock& lock_;
    const uint64_t begin_;
    const uint64_t end_;
    const Mode mode_;
    std::coroutine_handle<> waiter_ = nullptr;
    Hold* earlier_ = nullptr;
    Hold* later_ = nullptr;
  };

 private:
  void wake();

  Reactor& reactor_;
  Hold* first_ = nullptr;
  Hold* last_ = nullptr;
  unsigned exclusive_ = 0;
  unsigned waiting_ = 0;
};

inline RangeLock::Hold::Hold(RangeLock& lock, uint64_t begin, uint64_t end, Mode mode)
    : lock_(lock), begin_(begin), end_(end), mode_(mode), earlier_(lock.last_) {
  (earlier_ ? earlier_->later_ : lock_.first_) = this;
  lock_.last_ = this;
  if (mode_ == Mode::Exclusive) ++lock_.exclusive_;
}

inline RangeLock::Hold::~Hold() {
  (earlier_ ? earlier_->later_ : lock_.first_) = later_;
  (later_ ? later_->earlier_ : lock_.last_) = earlier_;
  if (mode_ == Mode::Exclusive) --lock_.exclusive_;
  if (lock_.waiting_ != 0) lock_.wake();
}

}  // namespace spindle
