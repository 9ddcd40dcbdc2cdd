// throttle: lets requests pass no faster than its limits (throttle_limits.h). Every graph has one on top, so
// that limits can be set on any disk at any time; without limits a request is handed on as it is.
//
// - It sits on top, above the format: what is counted is what the guest asked for, not what a format makes of
// it.
// - Reads and writes wait in two queues, each in the order they came; where both wait for the same total they
// take turns. Zero-writes count as writes of their length.
// - Flushes never wait: they move no data of their own, and other requests of the guest wait for them.
// Discards do not wait either, as in QEMU.
// - While somebody drains (Node::begin_drain), nothing waits. What passes is counted all the same, so a drain
//   lends time and gives none away.
// - New limits start with empty buckets, and hold for those that wait already.
//
// Threading: the node's reactor only.
#pragma once

#include <array>
#include <coroutine>
#include <deque>
#include <memory>

#include "block/filters/throttle_buckets.h"
#include "block/filters/throttle_clock.h"
#include "block/node.h"

namespace spindle {

class ThrottleNode final : public Node {
 public:
  /// `limits` have passed check_throttle_limits(). Without a clock the monotonic one.
  ThrottleNode(std::shared_ptr<Node> child, const ThrottleLimits& limits,
               std::unique_ptr<ThrottleClock> clock = nullptr);

  const ThrottleLimits& limits() const { return buckets_.limits(); }
  /// `limits` have passed check_throttle_limits().
  void set_limits(const ThrottleLimits& limits);
  /// Requests that wait now.
  std::size_t waiting() const { return queues_[0].waiting.size() + queues_[1].waiting.size(); }

  const NodeFacts& facts() const override { return child_->facts(); }
  uint64_t size() const override { return child_->size(); }
  Task<Result<>> read(uint64_t offset, Buffers buffers) override {
    if (!limited_[0]) [[likely]]
      return child_->read(offset, buffers);
    return throttled_read(offset, buffers);
  }
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override {
    if (!limited_[1]) [[likely]]
      return child_->write(offset, buffers, flags);
    return throttled_write(offset, buffers, flags);
  }
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override {
    if (!limited_[1]) [[likely]]
      return child_->write_zeroes(offset, length, flags);
    return throttled_zeroes(offset, length, flags);
  }
  Task<Result<>> discard(uint64_t offset, uint64_t length) override {
    return child_->discard(offset, length);
  }
  Task<Result<>> flush() override { return child_->flush(); }
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override { return child_->map(offset, length); }
  Task<Result<>> resize(uint64_t size) override { return child_->resize(size); }
  Task<Result<>> close() override {
    clock_->clear_alarm();
    return child_->close();
  }
  Node* child() const override { return child_.get(); }
  void begin_drain() override;
  void end_drain() override;

 private:
  struct Waiter {
    std::coroutine_handle<> handle;
    uint64_t bytes;
  };
  struct Queue {
    std::deque<Waiter> waiting;
    std::size_t released = 0;  // those that may go and are about to be resumed: newer ones stay behind them
  };
  struct Admission;

  Admission admission(ThrottleDirection direction, uint64_t bytes);
  bool may_go(ThrottleDirection direction) const;
  /// Lets everybody go who may, and sets the alarm for the next.
  void pump();
  bool release_one();
  void note_limited();

  Task<Result<>> throttled_read(uint64_t offset, Buffers buffers);
  Task<Result<>> throttled_write(uint64_t offset, Buffers buffers, WriteFlags flags);
  Task<Result<>> throttled_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags);

  std::shared_ptr<Node> child_;
  std::unique_ptr<ThrottleClock> clock_;
  ThrottleBuckets buckets_;
  std::array<bool, 2> limited_{};  // whether a request of this direction has to look at anything
  std::array<Queue, 2> queues_;
  unsigned drains_ = 0;
  std::size_t turn_ = 0;  // the direction that is asked first
};

/// The throttle of the graph under `top`, or null if it has none.
ThrottleNode* find_throttle(Node& top);

}  // namespace spindle
