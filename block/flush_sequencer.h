// FlushSequencer: which flush of a node is needed, which is shared, and which may be skipped (D5, D6).
//
// One per node, shared by every Disk, export and job over it. It counts modifications as they complete and
// remembers the count at which the last successful flush *started*:
//
//   completed_   modifications (write, zero, discard, resize) that completed or failed so far
//   clean_to_    value of completed_ at the start of the last successful flush
//   running      the flush under way, and the value of completed_ when it started
//
// A flush needs everything completed when it was asked for, `need = completed_`:
//   need <= clean_to_          elided. That flush has ended, and those who shared it are let return first.
//   need <= running.covers     coalesced: waits for the running one.
//   otherwise                  waits for the running one to end, then the first waiter starts the next, which
//   covers
//                              all that completed by then; the others share it (group commit).
//
// So the dirty state is taken before a flush starts and published after it succeeded, never cleared in
// between: a write that completes while a flush runs leaves the node dirty. A node is dirty when opened. A
// failed flush never cleans, and after one nothing succeeds any more until the image is reopened (D6). The
// one exception is a format that could not write its metadata, for lack of space say, and asked for no
// barrier behind it: nothing is lost, so that flush fails, the node stays dirty, and the next may succeed
// (Error::can_flush_again).
//
// Threading: the node's reactor only.
#pragma once

#include <coroutine>
#include <cstdint>
#include <optional>
#include <vector>

#include "block/io/task.h"
#include "block/result.h"

namespace spindle {

class Node;

/// How a flush was answered. Every request for a flush ends in exactly one of these (DESIGN 4, Counters).
enum class FlushOutcome : uint8_t {
  Issued,     ///< this request made the node flush, and it succeeded
  Elided,     ///< nothing had been modified since the last successful flush started
  Coalesced,  ///< another request's flush covered this one
  Failed,     ///< the covering flush failed, or an earlier one had
};

struct FlushResult {
  FlushOutcome outcome = FlushOutcome::Failed;
  Result<> result;
};

/// Orders that are wrong on purpose, so that tests prove they would be noticed. Never set outside tests.
enum class SequencerMutation : uint8_t {
  None,
  ReturnBeforeEarlier,  ///< an elidable flush does not wait for an earlier one that still runs
  ShareUncoveredFlush,  ///< a flush joins the running one although a write completed after that one started
  CleanAfterInsteadOfBefore,  ///< the dirty state is taken when the flush ends, not when it starts
};

class FlushSequencer {
 public:
  explicit FlushSequencer(Node& node) : node_(node) {}
  FlushSequencer(const FlushSequencer&) = delete;
  FlushSequencer& operator=(const FlushSequencer&) = delete;

  /// A modification completed or failed: in both cases the medium may differ from what the last flush saw.
  void modified() { ++completed_; }

  /// Makes durable all that completed before the call, by the cheapest means. See FlushOutcome.
  Task<FlushResult> flush();

  /// A FUA write failed in a way that a failed flush would have (D6).
  void fail(const Error& error);

  /// Set once a flush has failed: writes and flushes end with this error until the image is reopened.
  const std::optional<Error>& failure() const { return failure_; }

  bool dirty() const { return clean_to_ < completed_; }
  /// Something was modified since the node was opened, rather than dirty only because nobody knows what came
  /// before.
  bool modified_here() const { return completed_ > 1; }
  /// The elision switch (`flush-elision=off`): every flush is then issued or shared. For measuring.
  void set_elision(bool on) { elision_ = on; }
  void set_mutation(SequencerMutation mutation) { mutation_ = mutation; }

 private:
  struct Running {
    uint64_t covers;
  };
  struct Waiter;
  struct EndOfRunning;

  Task<Result<>> run();
  Error failure_error() const;

  Node& node_;
  uint64_t completed_ = 1;  // dirty when opened
  uint64_t clean_to_ = 0;
  std::optional<Running> running_;
  bool ended_well_ = false;  // the last one
  std::vector<std::coroutine_handle<>> waiters_;
  std::size_t resuming_ = 0;  // waiters of flushes that have ended which have not returned yet
  std::optional<Error> failure_;
  bool elision_ = true;
  SequencerMutation mutation_ = SequencerMutation::None;
};

}  // namespace spindle
