#include "block/flush_sequencer.h"

#include <cerrno>
#include <coroutine>

#include "block/node.h"
#include "block/trace/trace.h"

namespace spindle {

// Suspends a flush until the running one has ended. Waiters are resumed through the reactor, after the flush
// that ended has returned to its own caller: so no flush returns before an earlier one that covers the same
// data.
struct FlushSequencer::EndOfRunning {
  FlushSequencer& sequencer;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) { sequencer.waiters_.push_back(handle); }
  void await_resume() const noexcept { --sequencer.resuming_; }
};

Task<FlushResult> FlushSequencer::flush() {
  const uint64_t need = completed_;
  const trace::Id request = trace::taken();  // while it waits, others are handed down
  // Those who shared the flush that just ended are resumed in this turn or the next; they came first.
  if (resuming_ > 0) co_await node_.reactor().yield();
  bool waited = false;
  for (;;) {
    if (failure_) co_return FlushResult{FlushOutcome::Failed, std::unexpected(failure_error())};
    if (need <= clean_to_ && (waited || elision_)) {
      co_return FlushResult{waited ? FlushOutcome::Coalesced : FlushOutcome::Elided, {}};
    }
    if (!running_) break;
    const bool covered = need <= running_->covers || mutation_ == SequencerMutation::ShareUncoveredFlush;
    waited = true;
    co_await EndOfRunning{*this};
    if (covered && !failure_ && ended_well_) co_return FlushResult{FlushOutcome::Coalesced, {}};
  }
  trace::hand_down(request);
  auto result = co_await run();
  if (!result) co_return FlushResult{FlushOutcome::Failed, std::move(result)};
  co_return FlushResult{FlushOutcome::Issued, {}};
}

Task<Result<>> FlushSequencer::run() {
  const uint64_t covers = completed_;
  running_ = Running{covers};
  if (mutation_ == SequencerMutation::ReturnBeforeEarlier) clean_to_ = covers;
  auto result = co_await node_.flush();
  running_.reset();
  ended_well_ = result.has_value();
  if (!result) {
    if (!result.error()->can_flush_again) fail(*result.error());
  } else if (mutation_ == SequencerMutation::CleanAfterInsteadOfBefore) {
    clean_to_ = completed_;
  } else if (!failure_ && clean_to_ < covers) {
    clean_to_ = covers;
  }
  resuming_ += waiters_.size();
  for (auto waiter : waiters_) node_.reactor().schedule(waiter);
  waiters_.clear();
  if (failure_) co_return std::unexpected(failure_error());
  co_return result;
}

void FlushSequencer::fail(const Error& error) {
  if (failure_) return;
  failure_ = error;
  node_.abandon();
}

Error FlushSequencer::failure_error() const {
  Error error = *failure_;
  error.kind = ErrorKind::FlushFailed;
  error.number = EIO;
  return error;
}

}  // namespace spindle
