// Turns: lets one coroutine at a time through, in the order they came. For sections that must not mix
// although each of them waits for the disk in between.
//
// Threading: one reactor's thread.
#pragma once

#include <coroutine>
#include <deque>

#include "block/io/reactor.h"

namespace spindle {

class Turns {
 public:
  explicit Turns(Reactor& reactor) : reactor_(reactor) {}

  /// `Turns::Turn turn(turns); co_await turn;` holds the turn from there until `turn` is destroyed.
  class Turn {
   public:
    explicit Turn(Turns& turns) : turns_(turns) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      if (!owned_) return;
      if (turns_.queue_.empty()) {
        turns_.taken_ = false;
        return;
      }
      turns_.reactor_.schedule(turns_.queue_.front());  // taken_ stays set: nobody slips in between
      turns_.queue_.pop_front();
    }

    bool await_ready() const noexcept { return !turns_.taken_; }
    void await_suspend(std::coroutine_handle<> handle) { turns_.queue_.push_back(handle); }
    void await_resume() noexcept {
      turns_.taken_ = true;
      owned_ = true;
    }

   private:
    Turns& turns_;
    bool owned_ = false;
  };

 private:
  Reactor& reactor_;
  bool taken_ = false;
  std::deque<std::coroutine_handle<>> queue_;
};

}  // namespace spindle
