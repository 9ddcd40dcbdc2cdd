#include "block/disk.h"

#include <fmt/format.h>

#include <cerrno>

namespace spindle {
namespace {

constexpr uint64_t kSectorBytes = 512;

// What a trace calls things.
constexpr const char *kWrite = "disk write", *kWriteZeroes = "disk write zeroes", *kDiscard = "disk discard",
                     *kFlush = "disk flush", *kResize = "disk resize",
                     *kSetWriteCache = "disk set write cache", *kFlushed = "flush", *kFua = "FUA";

const char* chosen_by(CacheChooser chooser) {
  switch (chooser) {
    case CacheChooser::Guest:
      return "guest";
    case CacheChooser::Host:
      return "host";
    case CacheChooser::Reset:
      return "reset";
  }
  return "";
}

}  // namespace

// Toggles take turns: the flush of one may not end in the middle of another, or the mode shown could be
// stricter than the mode in force.
class Disk::ToggleTurn {
 public:
  explicit ToggleTurn(Disk& disk) : disk_(disk) {}
  ToggleTurn(const ToggleTurn&) = delete;
  ToggleTurn& operator=(const ToggleTurn&) = delete;
  ~ToggleTurn() {
    if (!owned_) return;
    if (disk_.toggle_queue_.empty()) {
      disk_.toggling_ = false;
      return;
    }
    disk_.reactor().schedule(disk_.toggle_queue_.front());  // the turn passes on while toggling_ stays set
    disk_.toggle_queue_.erase(disk_.toggle_queue_.begin());
  }

  bool await_ready() const noexcept { return !disk_.toggling_; }
  void await_suspend(std::coroutine_handle<> handle) { disk_.toggle_queue_.push_back(handle); }
  void await_resume() noexcept {
    disk_.toggling_ = true;
    owned_ = true;
  }

 private:
  Disk& disk_;
  bool owned_ = false;
};

Disk::Disk(std::shared_ptr<Node> node, DiskOptions options)
    : node_(std::move(node)),
      options_(std::move(options)),
      track_("disk " + options_.id),
      size_(node_->size()),
      write_cache_shown_(starts_with_write_cache(options_.cache)),
      write_cache_in_force_(starts_with_write_cache(options_.cache)) {
  options_.read_only |= node_->facts().read_only;
}

Disk::~Disk() = default;

Result<> Disk::out_of_range(const char* operation, uint64_t offset, uint64_t length, uint64_t end) const {
  Error error =
      Error::invalid(operation, id(), fmt::format("{} bytes reach beyond the end at {}", length, end));
  error.offset = offset;
  return std::unexpected(std::move(error));
}

Result<> Disk::check_modification(const char* operation, uint64_t offset, uint64_t length) const {
  SPINDLE_TRY(check_range(operation, offset, length));
  if (options_.read_only) {
    return std::unexpected(Error{.kind = ErrorKind::ReadOnly,
                                 .number = EROFS,
                                 .operation = operation,
                                 .node = id(),
                                 .offset = offset});
  }
  if (node_->sequencer().failure()) {
    return std::unexpected(Error{.kind = ErrorKind::FlushFailed,
                                 .number = EIO,
                                 .operation = operation,
                                 .node = id(),
                                 .offset = offset,
                                 .detail = "an earlier flush failed; reopen the image to go on"});
  }
  return {};
}

const char* Disk::name_of(Reason reason) {
  switch (reason) {
    case Reason::Guest:
      return "guest flush";
    case Reason::Writethrough:
      return "write-through";
    case Reason::Toggle:
      return "cache turned off";
    case Reason::Background:
      return "background";
  }
  return "";
}

// The device may have begun the request; what it handed down is also for the node below.
trace::Id Disk::begin_trace(const char* operation, trace::Range range, const char* reason) {
  trace::Id request = trace::taken();
  if (request == 0) request = track_.new_request();
  trace::begin(request, operation, range, reason);
  trace::hand_down(request);
  return request;
}

void Disk::came_to_rest() {
  for (auto waiter : drainers_) reactor().schedule(waiter);
  drainers_.clear();
}

Task<Result<>> Disk::write(uint64_t offset, Buffers buffers, WriteFlags flags) {
  InFlight in_flight(*this, kWrite, {offset, buffers.size}, flags.fua ? kFua : nullptr);
  if (auto allowed = check_modification("write", offset, buffers.size); !allowed)
    co_return ended(in_flight, kWrite, std::move(allowed));
  // With the cache off every write is followed by a flush of its own, which covers the metadata too and which
  // concurrent writers share; the node's FUA serves single writes of a write-back disk.
  const bool by_node =
      flags.fua && write_cache_in_force_ && node_->facts().supports_fua && !never_flushes(options_.cache);
  auto result = co_await node_->write(offset, buffers, WriteFlags{.fua = by_node});
  bool owing = completed_owing_flush(result, flags.fua, by_node);
  while (!result) {
    const bool again = co_await tries_again(Direction::Write, in_flight.request(), result);
    if (!again) break;
    trace::hand_down(in_flight.request());
    result = co_await node_->write(offset, buffers, WriteFlags{.fua = by_node});
    owing = completed_owing_flush(result, flags.fua, by_node);
  }
  if (result) {
    counters_.write_ops.add();
    counters_.write_bytes.add(buffers.size);
    if (flags.fua) counters_.fua_writes.add();
  }
  if (owing)
    result =
        co_await flush_for(Reason::Writethrough, in_flight.request(), flags.fua && write_cache_in_force_);
  co_return ended(in_flight, kWrite, std::move(result));
}

Task<Result<>> Disk::write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) {
  InFlight in_flight(*this, kWriteZeroes, {offset, length});
  if (auto allowed = check_modification("write_zeroes", offset, length); !allowed)
    co_return ended(in_flight, kWriteZeroes, std::move(allowed));
  const bool want_fua = flags.fua;
  flags.fua = false;
  flags.unmap &= options_.discard;
  auto result = co_await node_->write_zeroes(offset, length, flags);
  bool owing = completed_owing_flush(result, want_fua, false);
  while (!result) {
    const bool again = co_await tries_again(Direction::Write, in_flight.request(), result);
    if (!again) break;
    trace::hand_down(in_flight.request());
    result = co_await node_->write_zeroes(offset, length, flags);
    owing = completed_owing_flush(result, want_fua, false);
  }
  if (result) counters_.zero_ops.add();
  if (owing)
    result = co_await flush_for(Reason::Writethrough, in_flight.request(), want_fua && write_cache_in_force_);
  co_return ended(in_flight, kWriteZeroes, std::move(result));
}

Task<Result<>> Disk::discard(uint64_t offset, uint64_t length) {
  const ByteRange range{offset, length};
  co_return co_await discard(std::span(&range, 1));
}

Task<Result<>> Disk::discard(std::span<const ByteRange> ranges) {
  InFlight in_flight(*this, kDiscard);
  for (const ByteRange& range : ranges) {
    if (auto allowed = check_modification("discard", range.offset, range.length); !allowed)
      co_return ended(in_flight, kDiscard, std::move(allowed));
  }
  Result<> result;
  bool owing = false;
  for (const ByteRange& range : ranges) {
    if (options_.discard) {  // else accepted as the hint it is; nothing changes, so nothing is dirty
      trace::hand_down(in_flight.request());
      result = co_await node_->discard(range.offset, range.length);
      owing |= completed_owing_flush(result, false, false);
      while (!result) {
        const bool again = co_await tries_again(Direction::Write, in_flight.request(), result);
        if (!again) break;
        trace::hand_down(in_flight.request());
        result = co_await node_->discard(range.offset, range.length);
        owing |= completed_owing_flush(result, false, false);
      }
      if (!result) break;
    }
    counters_.discard_ops.add();
  }
  if (result && owing) result = co_await flush_for(Reason::Writethrough, in_flight.request());
  co_return ended(in_flight, kDiscard, std::move(result));
}

// The mode is looked at when a modification completes, not when it began: after a toggle to write-through
// flipped it, every later completion pays its own flush (D3).
bool Disk::completed_owing_flush(const Result<>& result, bool want_fua, bool was_fua) {
  node_->sequencer().modified();
  if (!result) {
    // A FUA write that failed may have failed as a flush does (D6), unless it is plain that nothing was
    // tried.
    const ErrorKind kind = result.error()->kind;
    const bool ordinary =
        kind == ErrorKind::NoSpace || kind == ErrorKind::NotSupported || kind == ErrorKind::Invalid;
    if (was_fua && !ordinary) node_->sequencer().fail(*result.error());
    return false;
  }
  const bool must_be_durable = want_fua || !write_cache_in_force_;
  return must_be_durable && !was_fua && mutation_ != DiskMutation::NoFlushAfterWrite;
}

Task<Result<>> Disk::resize(uint64_t bytes) {
  co_await drain();
  InFlight in_flight(*this, kResize, {0, bytes});
  if (auto allowed = check_modification("resize", 0, 0); !allowed)
    co_return ended(in_flight, kResize, std::move(allowed));
  if (options_.whole_sectors && (bytes == 0 || bytes % kSectorBytes != 0)) {
    Result<> refused = std::unexpected(Error::invalid(
        "resize", id(),
        fmt::format("{} bytes are no disk: it has whole sectors of 512, and one at least", bytes)));
    co_return ended(in_flight, kResize, std::move(refused));
  }
  auto result = co_await node_->resize(bytes);
  size_.store(node_->size(), std::memory_order_relaxed);
  if (completed_owing_flush(result, false, false))
    result = co_await flush_for(Reason::Writethrough, in_flight.request());
  co_return ended(in_flight, kResize, std::move(result));
}

Task<Result<>> Disk::flush() {
  InFlight in_flight(*this, kFlush);
  auto result = co_await flush_for(Reason::Guest, in_flight.request());
  co_return ended(in_flight, kFlush, std::move(result));
}

Task<Result<>> Disk::flush_for(Reason reason, trace::Id request, bool for_fua) {
  switch (reason) {
    case Reason::Guest:
      counters_.flush_requests.add();
      break;
    case Reason::Writethrough:
      counters_.flushes_writethrough.add();
      break;
    case Reason::Toggle:
      counters_.flushes_toggle.add();
      break;
    case Reason::Background:
      counters_.flushes_background.add();
      break;
  }
  trace::begin(request, kFlushed, {}, for_fua ? kFua : name_of(reason));
  trace::hand_down(request);
  auto flushed = co_await node_->sequencer().flush();
  const char* why = nullptr;
  // cache=unsafe: the node passed its metadata on, but the host was asked for nothing.
  if (flushed.outcome == FlushOutcome::Issued && never_flushes(options_.cache)) {
    flushed.outcome = FlushOutcome::Elided;
    why = "cache=unsafe";
  }
  switch (flushed.outcome) {
    case FlushOutcome::Issued:
      counters_.flushes_issued.add();
      trace::end(request, kFlushed, "issued");
      break;
    case FlushOutcome::Elided:
      counters_.flushes_elided.add();
      trace::end(request, kFlushed, "elided", why ? why : "nothing changed since the last flush began");
      break;
    case FlushOutcome::Coalesced:
      counters_.flushes_coalesced.add();
      trace::end(request, kFlushed, "coalesced", "another request's flush covered it");
      break;
    case FlushOutcome::Failed:
      counters_.flushes_failed.add();
      trace::end(request, kFlushed, "failed", trace::outcome_of(flushed.result));
      break;
  }
  co_return std::move(flushed.result);
}

Task<Result<>> Disk::set_write_cache(bool on, CacheChooser chooser) {
  InFlight in_flight(*this, kSetWriteCache, {}, chosen_by(chooser));
  ToggleTurn turn(*this);
  co_await turn;
  // D3: after a failed flush it stays write-through.
  const bool stays = on && node_->sequencer().failure();
  if (stays || (on == write_cache_shown_ && on == write_cache_in_force_)) {
    trace::end(in_flight.request(), kSetWriteCache, "unchanged", stays ? "an earlier flush failed" : nullptr);
    co_return Result<>{};
  }
  counters_.cache_toggles.add();
  if (on) {
    write_cache_in_force_ = true;
    write_cache_shown_ = true;
    trace::mark(track_.id(), "write cache on", chosen_by(chooser));
    co_return ended(in_flight, kSetWriteCache, Result<>{});
  }
  if (mutation_ != DiskMutation::FlushBeforeFlip) write_cache_in_force_ = false;
  trace::mark(track_.id(), "write cache off", chosen_by(chooser));
  auto result = co_await flush_for(Reason::Toggle, in_flight.request());
  write_cache_in_force_ = false;
  if (result) write_cache_shown_ = false;
  co_return ended(in_flight, kSetWriteCache, std::move(result));
}

Task<void> Disk::drain() {
  struct Drained {
    Disk& disk;
    bool await_ready() const noexcept { return disk.at_rest(); }
    void await_suspend(std::coroutine_handle<> handle) { disk.drainers_.push_back(handle); }
    void await_resume() const noexcept {}
  };
  const DrainSection drained(*node_);
  while (!at_rest()) co_await Drained{*this};
}

Task<Result<>> Disk::close() {
  fail_held();
  co_await drain();
  Result<> first;
  const FlushSequencer& sequencer = node_->sequencer();
  if (sequencer.modified_here() && sequencer.dirty())
    first = co_await flush_for(Reason::Background, trace::on() ? track_.new_request() : 0);
  auto closed = co_await node_->close();
  if (first && !closed) first = std::move(closed);
  co_return first;
}

}  // namespace spindle
