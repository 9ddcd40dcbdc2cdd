// Disk: a guest-facing disk over a node. The only place that knows whether the guest's write cache is on.
//
// What Disk adds to its node:
// - the write-cache state (WCE). Off means write-through, faked by a flush after each modification (D2); a
// toggle from on
//   to off flips first and then flushes what completed earlier (D3);
// - FUA, by the node where it can, else by a flush;
// - elision and sharing of flushes, through the node's sequencer (D5), and the refusal of writes after a
// failed one (D6);
// - what becomes of the host's errors (rerror=, werror=), with requests that wait for the guest to go on;
// - counters, and drain.
//
// cache=unsafe: no flush reaches the host, the guest is answered as if one had (D9); such flushes count as
// elided.
//
// Threading: everything runs on the node's reactor, except what is marked "any thread".
#pragma once

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "block/cache_mode.h"
#include "block/counters.h"
#include "block/error_policy.h"
#include "block/node.h"
#include "block/trace/trace.h"

namespace spindle {

struct DiskOptions {
  std::string id;  ///< how messages and statistics name it
  CacheMode cache = CacheMode::Writeback;
  bool read_only = false;
  bool discard =
      false;  ///< discard=unmap: guest discards reach the node; otherwise they are accepted and do nothing
  ErrorPolicy read_errors = ErrorPolicy::Report;
  ErrorPolicy write_errors = ErrorPolicy::Report;  ///< also of zeroes and discards, never of flushes
  bool whole_sectors = true;  ///< a guest's disk cannot be resized to anything else; a tool's image can
};

/// Who wants the write cache on or off: for traces.
enum class CacheChooser : uint8_t { Guest, Host, Reset };

/// Whether requests wait, and for what, as QMP's io-status has it.
enum class IoStatus : uint8_t { Ok, Failed, NoSpace };

/// Bytes of a disk.
struct ByteRange {
  uint64_t offset = 0;
  uint64_t length = 0;
  bool operator==(const ByteRange&) const = default;
};

/// Leaves a guarantee out on purpose, so that tests prove its absence would be noticed. Never set outside
/// tests.
enum class DiskMutation : uint8_t { None, NoFlushAfterWrite, FlushBeforeFlip };

class Disk {
 public:
  Disk(std::shared_ptr<Node> node, DiskOptions options);
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  // ---- any thread ----
  const std::string& id() const { return options_.id; }
  bool read_only() const { return options_.read_only; }
  CacheMode cache_mode() const { return options_.cache; }
  /// Whether discards give space back to the host: discard=unmap, over a node that can.
  bool unmaps() const { return options_.discard && node_->facts().discard_granularity != 0; }
  /// Bytes, a multiple of 512.
  uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  /// The mode that the guest has chosen and is shown. The mode in force may be stricter, never weaker (D3).
  bool write_cache() const { return write_cache_shown_.load(std::memory_order_acquire); }
  bool configured_write_cache() const { return starts_with_write_cache(options_.cache); }
  const DiskCounters& counters() const { return counters_; }
  Reactor& reactor() const { return node_->reactor(); }
  Node& node() const { return *node_; }
  /// Where a trace shows the disk's requests.
  const trace::Track& track() const { return track_; }

  // ---- the reactor ----
  class Read;
  /// co_await disk.read(...) gives the Result<>.
  [[nodiscard]] Read read(uint64_t offset, Buffers buffers);
  /// Completes when the data is readable; with WCE off or `fua` also durable (D2).
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags = {});
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags = {});
  Task<Result<>> discard(uint64_t offset, uint64_t length);
  /// The same for several ranges, with one flush for all of them where D2 wants one. They are checked before
  /// anything is done; after another error some may have been discarded. `ranges` lives until it has
  /// returned.
  Task<Result<>> discard(std::span<const ByteRange> ranges);
  /// The guest's flush (D1).
  Task<Result<>> flush();

  /// The host's user gives the disk another size, in bytes: whole sectors, at least one, if `whole_sectors`. With the cache off
  /// it returns when the new size is durable (D2). The caller has stopped the guest: what is in flight is
  /// waited for, so that no request reaches beyond the end that is to be. After an error the disk has the
  /// size its node says.
  Task<Result<>> resize(uint64_t bytes);

  /// The guest (or its user) turns the write cache on or off (D3). On -> off returns after everything
  /// completed earlier is durable; if that flush fails the error is returned, the disk is write-through all
  /// the same and D6 applies. Off -> on is immediate. Setting what is set already counts as no toggle and
  /// flushes nothing.
  Task<Result<>> set_write_cache(bool on, CacheChooser chooser = CacheChooser::Guest);
  /// Back to the configured mode (D4): power-on, machine reset, virtio reset, ATA soft reset after SET
  /// FEATURES CCh.
  Task<Result<>> revert_write_cache() {
    return set_write_cache(configured_write_cache(), CacheChooser::Reset);
  }

  /// Who stops the guest when a request met an error under the policy to stop. Called on the reactor for each
  /// such request, which waits from then on; must not wait itself. Without it such errors are reported.
  /// Before the first request.
  void set_stop_handler(std::function<void(const Error&)> handler) { on_stop_ = std::move(handler); }
  /// Requests that wait after an error.
  uint64_t held() const { return held_.size(); }
  IoStatus io_status() const;
  /// The guest goes on: those that wait are tried again, and may come to wait again.
  void retry_held() { end_held(true); }
  /// The guest is reset or ends: those that wait end with their errors, and errors are reported, until
  /// hold_errors().
  void fail_held() {
    holds_errors_ = false;
    end_held(false);
  }
  void hold_errors() { holds_errors_ = true; }

  /// Returns when no request is in flight but those that wait after an error; none waits for throttling
  /// meanwhile. New ones may still be started; the caller has stopped their source.
  Task<void> drain();
  /// fail_held, drain, flush what was modified and is dirty (as flushes_background), close the node. The
  /// first error is returned, all steps are done.
  Task<Result<>> close();

  void set_mutation(DiskMutation mutation) { mutation_ = mutation; }

 private:
  enum class Reason : uint8_t { Guest, Writethrough, Toggle, Background };
  class ToggleTurn;
  class Hold;

  // A request between its start and its end, so that drain() knows when all have ended; and its id, if it is
  // traced.
  class InFlight {
   public:
    InFlight(Disk& disk, const char* operation, trace::Range range = {}, const char* reason = nullptr)
        : disk_(&disk) {
      ++disk.in_flight_;
      if (trace::on()) [[unlikely]]
        request_ = disk.begin_trace(operation, range, reason);
    }
    InFlight(InFlight&& other) noexcept
        : disk_(std::exchange(other.disk_, nullptr)), request_(other.request_) {}
    InFlight& operator=(InFlight&&) = delete;
    ~InFlight() {
      if (disk_) disk_->ended_one();
    }
    Disk& disk() const { return *disk_; }
    trace::Id request() const { return request_; }

   private:
    Disk* disk_;
    trace::Id request_ = 0;
  };

  trace::Id begin_trace(const char* operation, trace::Range range, const char* reason);
  /// The end of an operation for the counters and the trace.
  Result<> ended(const InFlight& in_flight, const char* operation, Result<> result) {
    if (in_flight.request() != 0) [[unlikely]]
      trace::end(in_flight.request(), operation, trace::outcome_of(result));
    return counted(std::move(result));
  }
  /// `for_fua`: a write-back disk's write wanted to be durable, which a trace shows.
  Task<Result<>> flush_for(Reason reason, trace::Id request, bool for_fua = false);
  static const char* name_of(Reason reason);
  /// Notes that a modification ended, and how. True if it may not complete before a flush (D2).
  bool completed_owing_flush(const Result<>& result, bool want_fua, bool was_fua);
  Result<> check_modification(const char* operation, uint64_t offset, uint64_t length) const;
  Result<> check_range(const char* operation, uint64_t offset, uint64_t length) const {
    const uint64_t end = size();
    if (offset <= end && length <= end - offset) [[likely]]
      return {};
    return out_of_range(operation, offset, length, end);
  }
  Result<> out_of_range(const char* operation, uint64_t offset, uint64_t length, uint64_t end) const;
  Result<> counted(Result<> result) {
    if (!result) counters_.errors.add();
    return result;
  }
  enum class Direction : uint8_t { Read, Write };
  /// After `result` failed: true if the request is to be carried out once more. Else `result` is what the
  /// guest is told.
  Task<bool> tries_again(Direction direction, trace::Id request, Result<>& result);
  Task<Result<>> read_by_policy(uint64_t offset, Buffers buffers);
  void end_held(bool retry);
  void ended_one() {
    --in_flight_;
    if (at_rest()) came_to_rest();
  }
  bool at_rest() const { return in_flight_ == held_.size(); }
  void came_to_rest();

  std::shared_ptr<Node> node_;
  DiskOptions options_;
  trace::Track track_;
  std::atomic<uint64_t> size_;
  std::atomic<bool> write_cache_shown_;
  bool write_cache_in_force_;
  bool toggling_ = false;
  std::vector<std::coroutine_handle<>> toggle_queue_;
  DiskCounters counters_;
  uint64_t in_flight_ = 0;
  std::vector<std::coroutine_handle<>> drainers_;
  std::vector<Hold*> held_;
  bool holds_errors_ = true;
  std::function<void(const Error&)> on_stop_;
  DiskMutation mutation_ = DiskMutation::None;
};

/// A read under way. Not a Task: there is nothing to do between the node's answer and its being passed on but
/// to count, so it needs no frame of its own; measured, that is a fifth of what Spindle adds to a cached
/// read.
class [[nodiscard]] Disk::Read {
 public:
  Read(Disk& disk, uint64_t offset, Buffers buffers, Task<Result<>> task)
      : in_flight_(disk, kOperation, {offset, buffers.size}), bytes_(buffers.size), task_(std::move(task)) {}

  bool await_ready() const noexcept { return task_.await_ready(); }
  bool await_suspend(std::coroutine_handle<> awaiter) { return task_.await_suspend(awaiter); }
  Result<> await_resume() {
    const InFlight ending(std::move(in_flight_));  // however long this object lives on
    Disk& disk = ending.disk();
    Result<> result = task_.await_resume();
    if (result) {
      disk.counters_.read_ops.add();
      disk.counters_.read_bytes.add(bytes_);
    }
    return disk.ended(ending, kOperation, std::move(result));
  }

 private:
  static constexpr const char* kOperation = "disk read";

  InFlight in_flight_;
  uint64_t bytes_;
  Task<Result<>> task_;
};

inline Disk::Read Disk::read(uint64_t offset, Buffers buffers) {
  auto allowed = check_range("read", offset, buffers.size);
  if (!allowed) return {*this, offset, buffers, finished(std::move(allowed))};
  if (options_.read_errors != ErrorPolicy::Report)
    return {*this, offset, buffers, read_by_policy(offset, buffers)};
  return {*this, offset, buffers, node_->read(offset, buffers)};
}

}  // namespace spindle
