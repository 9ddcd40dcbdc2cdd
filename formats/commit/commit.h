// Commit: writes a format's metadata so that a crash at any point leaves an image that is right (D8).
//
// A format keeps its metadata in memory, changes it there, and says so (changed()). The commit writes it out
// in three stages, of which each stands on a barrier of the one before:
//
//   1  what must be there before anything points at it: counts up, new tables, space that was made ready. It
//   is
//      followed by a barrier, if any pointer of this commit needs one.
//   2  the pointers. Barrier: this is the flush that the guest asked for.
//   3  what only then may happen: space that nothing points to any more is used again (published()). What
//   stage 3
//      wants written, counts down, comes with stage 1 of the next commit.
//
// The format decides what belongs where, in one step without waiting (freeze()): what it hands over is a
// copy, so that all that changes from then on belongs to the next commit. One commit runs at a time; who
// comes meanwhile waits for it to end and then starts or shares the next, since what it needs may not have
// been frozen.
//
// When a commit is made depends on the policy, `metadata-flush=`:
//
//   ordered  at a flush, at close, when the format holds more than a bound, and kIdle after the first change.
//   eager    each change is written at once, pointers right behind counts without a barrier, then flushed:
//   what the
//            VDI patch of 2015 did.
//   none     each change is written at once. Nothing orders it against anything but the guest's flushes.
//
// Failure (D6): after a failed barrier nothing is written any more, neither when idle nor at close, and every
// flush // fails until the image is opened again; the format refuses changes as well, whoever heard of the
// failure (abandoned()). A failed metadata write (no space, say) is an ordinary error: what was frozen has
// changed again (restore()), and the next flush, or the next idle moment, tries once more.
//
// Threading: the node's reactor only. Whoever owns a commit calls close() before it goes away.
#pragma once

#include <chrono>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "block/filters/turn.h"
#include "block/node.h"

namespace spindle {

enum class CommitPolicy : uint8_t { Ordered, Eager, None };

/// "ordered", "eager" or "none"; nullopt for anything else.
std::optional<CommitPolicy> parse_commit_policy(std::string_view text);
std::string_view to_string(CommitPolicy policy);

/// Edges that are left out on purpose, so that tests prove each is needed. Never set outside tests.
enum class CommitMutation : uint8_t {
  None,
  NoBarrierBeforePointers,  ///< stage 2 does not wait for stage 1
  PointersFirst,            ///< stage 2 is written before stage 1
  NoFinalBarrier,           ///< a flush returns when the pointers are written, not when they are durable
  ReleaseEarly,             ///< stage 3 happens before the barrier of stage 2
  FreezeTwice,       ///< pointers that changed during the first barrier are written with those it covers
  JoinRunning,       ///< a flush takes a running commit for its own
  ForgetAfterError,  ///< what could not be written is not written again
  GoOnAfterFailure,  ///< a failed barrier is forgotten
};

class Commit {
 public:
  /// Bytes of metadata, and where in the file they go.
  struct Write {
    uint64_t offset = 0;
    std::vector<std::byte> bytes;
  };
  struct Batch {
    std::vector<Write> before;  ///< stage 1
    /// A pointer stands on something that is not known to be durable: a write of `before`, or anything the
    /// format did to the file earlier, be it data.
    bool barrier = false;
    std::vector<Write> pointers;  ///< stage 2
  };

  /// The format, as the commit sees it. None of these may wait.
  class Owner {
   public:
    /// Hands over all that has changed. Until published() or restore() it is neither changed nor durable.
    virtual Batch freeze() = 0;
    /// What freeze() handed over is durable, and all the format did to the file before that call is too.
    virtual void published() = 0;
    /// It could not be written, or only in part: it has changed again.
    virtual void restore() = 0;
    /// Bytes that wait for a commit: changed metadata, and space that may not be used before.
    virtual uint64_t waiting_bytes() const = 0;

   protected:
    ~Owner() = default;
  };

  struct Options {
    CommitPolicy policy = CommitPolicy::Ordered;
    uint64_t max_waiting = 4 << 20;  ///< bytes of Owner::waiting_bytes() from which changed() makes a commit
    std::chrono::nanoseconds idle = std::chrono::seconds(5);
    CommitMutation mutation = CommitMutation::None;
  };

  /// Writes to `file`, for `owner`; both outlive it.
  Commit(Node& file, Owner& owner, Options options);

  CommitPolicy policy() const { return options_.policy; }
  /// Metadata has changed in memory. Returns when the policy has had its way: with ordered at once, unless
  /// too much waits; else when the change is written, with eager when it is durable. The change itself stays,
  /// whatever is returned.
  Task<Result<>> changed();
  /// Makes durable all that changed, and all that was done to the file, before the call.
  Task<Result<>> flush();
  /// No timer and no commit of it runs any more when this returns. Writes nothing.
  Task<void> close();
  /// D6, from outside: nothing is written from now on.
  void abandon();
  bool abandoned() const { return abandoned_; }
  /// Set once a barrier has failed.
  const std::optional<Error>& failure() const { return failure_; }
  /// Commits that needed the barrier between stage 1 and 2, and all: for tests.
  uint64_t barriers_before_pointers() const { return barriers_before_pointers_; }
  uint64_t commits() const { return commits_; }

 private:
  Task<Result<>> run(bool durable);
  Task<Result<>> write_all(const std::vector<Write>& writes);
  Task<Result<>> barrier();
  Task<Result<>> stages(Batch& batch, bool durable);
  void set_timer();
  void on_idle();

  Node& file_;
  Owner& owner_;
  Options options_;
  Turns turns_;
  Reactor::Timer timer_;
  uint64_t changes_ = 0;  // calls of changed()
  uint64_t written_ = 0;  // of these, how many are in the file
  std::optional<Error> failure_;
  bool abandoned_ = false;
  bool running_ = false;
  uint64_t barriers_before_pointers_ = 0;
  uint64_t commits_ = 0;
};

}  // namespace spindle
