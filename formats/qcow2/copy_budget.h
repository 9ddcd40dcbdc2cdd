// CopyBudget: bounds the memory of copies that run side by side. Who gets some holds it while it copies and
// waits for nobody else's, so the wait ends. First come, first served.
//
// Threading: the node's reactor only.
#pragma once

#include <coroutine>
#include <cstdint>
#include <deque>

#include "block/io/reactor.h"

namespace spindle::qcow2 {

class CopyBudget {
 public:
  static constexpr uint64_t kBytes = 64 << 20;  ///< a disk

  explicit CopyBudget(Reactor& reactor) : reactor_(reactor) {}

  /// `co_await share` returns when there is room; `bytes` is at most kBytes.
  class Share {
   public:
    Share(CopyBudget& budget, uint64_t bytes) : budget_(budget), bytes_(bytes) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() {
      if (!held_) return;
      budget_.left_ += bytes_;
      budget_.wake();
    }

    bool await_ready() {
      if (!budget_.waiters_.empty() || budget_.left_ < bytes_) return false;
      take();
      return true;
    }
    void await_suspend(std::coroutine_handle<> handle) { budget_.waiters_.push_back({this, handle}); }
    void await_resume() const noexcept {}

   private:
    friend class CopyBudget;
    void take() {
      budget_.left_ -= bytes_;
      held_ = true;
    }
    CopyBudget& budget_;
    uint64_t bytes_;
    bool held_ = false;
  };

 private:
  struct Waiter {
    Share* share;
    std::coroutine_handle<> handle;
  };
  void wake() {
    while (!waiters_.empty() && waiters_.front().share->bytes_ <= left_) {
      waiters_.front().share->take();
      reactor_.schedule(waiters_.front().handle);
      waiters_.pop_front();
    }
  }

  Reactor& reactor_;
  uint64_t left_ = kBytes;
  std::deque<Waiter> waiters_;
};

}  // namespace spindle::qcow2
