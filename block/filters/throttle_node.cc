#include "block/filters/throttle_node.h"

#include <algorithm>

#include "block/trace/trace.h"

namespace spindle {
namespace {

constexpr const char* kThrottled = "throttled";

}  // namespace

// co_await it: returns when the request may go, which has been accounted for by then.
struct ThrottleNode::Admission {
  ThrottleNode& node;
  ThrottleDirection direction;
  uint64_t bytes;
  trace::Id request = trace::taken();
  bool queued = false;

  Queue& queue() const { return node.queues_[static_cast<std::size_t>(direction)]; }
  bool await_ready() const {
    node.pump();  // those who wait and are due come first
    if (!queue().waiting.empty() || queue().released != 0 || !node.may_go(direction)) return false;
    node.buckets_.account(direction, bytes);
    return true;
  }
  void await_suspend(std::coroutine_handle<> handle) {
    queued = true;
    trace::begin(request, kThrottled);
    queue().waiting.push_back({handle, bytes});
    node.pump();
  }
  void await_resume() const {
    if (queued) {
      trace::end(request, kThrottled, "ok");
      --queue().released;
      node.note_limited();
    }
    trace::hand_down(request);
  }
};

ThrottleNode::ThrottleNode(std::shared_ptr<Node> child, const ThrottleLimits& limits,
                           std::unique_ptr<ThrottleClock> clock)
    : Node(child->reactor()),
      child_(std::move(child)),
      clock_(clock ? std::move(clock) : std::make_unique<MonotonicThrottleClock>(reactor())),
      buckets_(limits, clock_->now()) {
  clock_->ring = [this] { pump(); };
  note_limited();
}

void ThrottleNode::set_limits(const ThrottleLimits& limits) {
  buckets_ = ThrottleBuckets(limits, clock_->now());
  note_limited();
  pump();
}

// A direction that lost its limits stays on the slow path until all who waited have gone, lest new requests
// overtake them.
void ThrottleNode::note_limited() {
  const auto pending = [](const Queue& queue) { return !queue.waiting.empty() || queue.released != 0; };
  limited_ = {buckets_.limits().limits_reads() || pending(queues_[0]),
              buckets_.limits().limits_writes() || pending(queues_[1])};
}

bool ThrottleNode::may_go(ThrottleDirection direction) const {
  return drains_ != 0 || buckets_.wait(direction).count() == 0;
}

bool ThrottleNode::release_one() {
  for (const std::size_t index : {turn_, 1 - turn_}) {
    Queue& queue = queues_[index];
    const auto direction = static_cast<ThrottleDirection>(index);
    if (queue.waiting.empty() || !may_go(direction)) continue;
    const Waiter waiter = queue.waiting.front();
    queue.waiting.pop_front();
    ++queue.released;
    buckets_.account(direction, waiter.bytes);
    reactor().schedule(waiter.handle);
    turn_ = 1 - index;
    return true;
  }
  return false;
}

void ThrottleNode::pump() {
  const auto now = clock_->now();
  buckets_.leak(now);
  while (release_one()) {
  }
  std::chrono::nanoseconds next = std::chrono::nanoseconds::max();
  for (const auto direction : {ThrottleDirection::Read, ThrottleDirection::Write}) {
    if (!queues_[static_cast<std::size_t>(direction)].waiting.empty())
      next = std::min(next, buckets_.wait(direction));
  }
  if (next == std::chrono::nanoseconds::max()) {
    clock_->clear_alarm();
  } else {
    clock_->set_alarm(now + next);
  }
}

void ThrottleNode::begin_drain() {
  if (drains_++ == 0) pump();
  child_->begin_drain();
}

void ThrottleNode::end_drain() {
  --drains_;
  child_->end_drain();
}

ThrottleNode::Admission ThrottleNode::admission(ThrottleDirection direction, uint64_t bytes) {
  return {.node = *this, .direction = direction, .bytes = bytes};
}

// The child is asked only when it is the request's turn: it may look at its size when it is asked.
Task<Result<>> ThrottleNode::throttled_read(uint64_t offset, Buffers buffers) {
  co_await admission(ThrottleDirection::Read, buffers.size);
  co_return co_await child_->read(offset, buffers);
}

Task<Result<>> ThrottleNode::throttled_write(uint64_t offset, Buffers buffers, WriteFlags flags) {
  co_await admission(ThrottleDirection::Write, buffers.size);
  co_return co_await child_->write(offset, buffers, flags);
}

Task<Result<>> ThrottleNode::throttled_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) {
  co_await admission(ThrottleDirection::Write, length);
  co_return co_await child_->write_zeroes(offset, length, flags);
}

ThrottleNode* find_throttle(Node& top) {
  for (Node* node = &top; node; node = node->child()) {
    if (auto* throttle = dynamic_cast<ThrottleNode*>(node)) return throttle;
  }
  return nullptr;
}

}  // namespace spindle
