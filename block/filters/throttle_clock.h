// ThrottleClock: the time a ThrottleNode goes by, and its one alarm. Tests put a clock of their own in its
// place, so that hours pass at once and rates can be checked to a request.
//
// Threading: the node's reactor only.
#pragma once

#include <chrono>
#include <functional>

#include "block/io/reactor.h"

namespace spindle {

class ThrottleClock {
 public:
  virtual ~ThrottleClock() = default;
  /// Never goes back.
  virtual std::chrono::nanoseconds now() const = 0;
  /// Calls `ring` once, when now() has come to `when` or earlier: who is rung at looks at the clock. Replaces
  /// an alarm that was set.
  virtual void set_alarm(std::chrono::nanoseconds when) = 0;
  virtual void clear_alarm() = 0;

  std::function<void()> ring;
};

/// The monotonic clock, and a timer of the reactor.
class MonotonicThrottleClock final : public ThrottleClock {
 public:
  explicit MonotonicThrottleClock(Reactor& reactor) : timer_(reactor, [this] { ring(); }) {}
  std::chrono::nanoseconds now() const override {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
  void set_alarm(std::chrono::nanoseconds when) override {
    // A timer that is under way and rings earlier serves as well, and costs no system call.
    if (timer_.pending() && rings_at_ <= when) return;
    rings_at_ = when;
    timer_.set(when - now());
  }
  void clear_alarm() override { timer_.clear(); }

 private:
  Reactor::Timer timer_;
  std::chrono::nanoseconds rings_at_{0};
};

}  // namespace spindle
