// Disk: a guest-facing disk over a node. The only place that knows whether the guest's write cache is on.
//
// What Disk adds to its node:
// - the write-cache state (WCE). Off means write-through, faked by a flush after each modification (D2); a
// toggle from on
//   to off flips first and then flushes what completed earlier (D3);
// - FUA, by the node where it can, else by a flush;
// - elision and sharing of flushes, through the node's sequencer (D5), and the refusal of writes after a
// failed one (D6);
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
#include <memory>
#include <string>
#include <vector>

#include "block/cache_mode.h"
#include "block/counters.h"
#include "block/node.h"

namespace spindle {

struct DiskOptions {
  std::string id;  ///< how messages and statistics name it
  CacheMode cache = CacheMode::Writeback;
  bool read_only = false;
  bool discard =
      false;  ///< discard=unmap: guest discards reach the node; otherwise they are accepted and do nothing
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
  /// Bytes, a multiple of 512.
  uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  /// The mode that the guest has chosen and is shown. The mode in force may be stricter, never weaker (D3).
  bool write_cache() const { return write_cache_shown_.load(std::memory_order_acquire); }
  bool configured_write_cache() const { return starts_with_write_cache(options_.cache); }
  const DiskCounters& counters() const { return counters_; }
  Reactor& reactor() const { return node_->reactor(); }
  Node& node() const { return *node_; }

  // ---- the reactor ----
  Task<Result<>> read(uint64_t offset, Buffers buffers);
  /// Completes when the data is readable; with WCE off or `fua` also durable (D2).
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags = {});
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags = {});
  Task<Result<>> discard(uint64_t offset, uint64_t length);
  /// The guest's flush (D1).
  Task<Result<>> flush();

  /// The guest (or its user) turns the write cache on or off (D3). On -> off returns after everything
  /// completed earlier is durable; if that flush fails the error is returned, the disk is write-through all
  /// the same and D6 applies. Off -> on is immediate. Setting what is set already counts as no toggle and
  /// flushes nothing.
  Task<Result<>> set_write_cache(bool on);
  /// Back to the configured mode (D4): power-on, machine reset, virtio reset, ATA soft reset after SET
  /// FEATURES CCh.
  Task<Result<>> revert_write_cache() { return set_write_cache(configured_write_cache()); }

  /// Returns when no request is in flight. New ones may still be started; the caller has stopped their
  /// source.
  Task<void> drain();
  /// drain, flush what was modified and is dirty (as flushes_background), close the node. The first error is
  /// returned, all steps are done.
  Task<Result<>> close();

  void set_mutation(DiskMutation mutation) { mutation_ = mutation; }

 private:
  enum class Reason : uint8_t { Guest, Writethrough, Toggle, Background };
  class InFlight;
  class ToggleTurn;

  Task<Result<>> flush_for(Reason reason);
  Task<Result<>> finish_modification(Result<> result, bool want_fua, bool was_fua);
  std::optional<Error> refuse_modification(const char* operation, uint64_t offset, uint64_t length) const;
  std::optional<Error> check_range(const char* operation, uint64_t offset, uint64_t length) const;
  Result<> counted(Result<> result);

  std::shared_ptr<Node> node_;
  DiskOptions options_;
  std::atomic<uint64_t> size_;
  std::atomic<bool> write_cache_shown_;
  bool write_cache_in_force_;
  bool toggling_ = false;
  std::vector<std::coroutine_handle<>> toggle_queue_;
  DiskCounters counters_;
  uint64_t in_flight_ = 0;
  std::vector<std::coroutine_handle<>> drainers_;
  DiskMutation mutation_ = DiskMutation::None;
};

}  // namespace spindle
