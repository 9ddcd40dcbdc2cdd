// Disk's requests that met an error of the host and a policy other than to report it: those that wait for the
// guest to go on, and how they end.
#include <algorithm>

#include "block/disk.h"

namespace spindle {
namespace {

constexpr const char* kHeld = "waits after an error";

}  // namespace

// Suspends a request until retry_held() or fail_held(); gives whether to try again.
class Disk::Hold {
 public:
  Hold(Disk& disk, const Error& error) : disk_(disk), error_(error) {}

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) {
    waiter_ = handle;
    disk_.held_.push_back(this);
    if (disk_.at_rest()) disk_.came_to_rest();
    // Last: whoever is told may look at the disk at once.
    if (disk_.on_stop_) disk_.on_stop_(error_);
  }
  bool await_resume() const noexcept { return retry_; }

  void end(bool retry) {
    retry_ = retry;
    disk_.reactor().schedule(waiter_);
  }
  const Error& error() const { return error_; }

 private:
  Disk& disk_;
  const Error& error_;
  std::coroutine_handle<> waiter_;
  bool retry_ = false;
};

Task<bool> Disk::tries_again(Direction direction, trace::Id request, Result<>& result) {
  const bool writes = direction == Direction::Write;
  const auto flush_failed = [&] { return writes && node_->sequencer().failure().has_value(); };  // D6
  if (flush_failed()) co_return false;
  switch (action_for(writes ? options_.write_errors : options_.read_errors, *result.error())) {
    case ErrorAction::Report:
      co_return false;
    case ErrorAction::Ignore:
      counters_.errors.add();
      result = {};
      co_return false;
    case ErrorAction::Stop:
      if (!on_stop_ || !holds_errors_) co_return false;  // nobody would let it go on
      trace::begin(request, kHeld, {}, trace::outcome_of(result));
      const bool again = co_await Hold(*this, *result.error());
      trace::end(request, kHeld, again ? "tried again" : "given up");
      if (!again || flush_failed()) co_return false;
      counters_.errors.add();  // else the caller counts it
      co_return true;
  }
  co_return false;
}

Task<Result<>> Disk::read_by_policy(uint64_t offset, Buffers buffers) {
  const trace::Id request = trace::taken();
  trace::hand_down(request);
  auto result = co_await node_->read(offset, buffers);
  while (!result) {
    const bool again = co_await tries_again(Direction::Read, request, result);
    if (!again) break;
    trace::hand_down(request);
    result = co_await node_->read(offset, buffers);
  }
  co_return result;
}

IoStatus Disk::io_status() const {
  if (held_.empty()) return IoStatus::Ok;
  const auto no_space = [](const Hold* hold) { return hold->error().kind == ErrorKind::NoSpace; };
  return std::ranges::any_of(held_, no_space) ? IoStatus::NoSpace : IoStatus::Failed;
}

void Disk::end_held(bool retry) {
  const auto ending = std::exchange(held_, {});
  for (Hold* hold : ending) hold->end(retry);
}

}  // namespace spindle
