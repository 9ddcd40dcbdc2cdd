// trace: where code says what happens to a request and when, for a Chrome trace (docs/tracing.md).
//
// Off, which is nearly always, a hook is one look at a flag that nobody writes to. On, it puts a record into
// a buffer of its thread (ring.h), without a lock; a Tracer (tracer.h) writes them out on a thread of its
// own.
//
// A request has an Id, under which all its spans nest: the device begins the outermost, and whoever is below
// adds what it does. The Id goes down without a parameter in every Node operation: who calls hands it down
// right before, and who is called takes it before it waits for anything. What nobody handed down is 0, and
// the taker makes an Id of its own: a span then stands alone, but never under another request. The loop
// forgets what was not taken.
//
// Names, outcomes and reasons are string literals (or as lasting): records keep the pointers.
//
// Threading: everything from any thread, and an Id may be used on several. begin() and end() of one request
// on one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "block/result.h"

namespace spindle::trace {

/// Bytes of a disk that a span is about; none for a flush.
struct Range {
  uint64_t offset = 0;
  uint64_t length = 0;
};

/// A request in the trace; 0: none. The upper 16 bits are the track.
using Id = uint64_t;
inline constexpr unsigned kTrackShift = 48;

namespace detail {
inline constinit std::atomic<bool> recording{false};
inline constinit thread_local Id handed = 0;
void begin_at(uint64_t time, Id request, const char* name, Range range, const char* reason);
void end(Id request, const char* name, const char* outcome, const char* why);
void mark(Id track, const char* name, const char* reason);
}  // namespace detail

/// Whether a trace is being recorded.
inline bool on() {
  return detail::recording.load(std::memory_order_relaxed);
}

/// The monotonic clock, in nanoseconds.
uint64_t now();

/// What the trace shows as a process of its own: a disk. Named as long as it lives, and beyond that in a
/// trace it has been seen in.
class Track {
 public:
  explicit Track(std::string name);
  ~Track();
  Track(const Track&) = delete;
  Track& operator=(const Track&) = delete;
  /// For marks: the track itself.
  Id id() const { return Id{number_} << kTrackShift; }
  /// For a request, never given before.
  Id new_request() const;

 private:
  uint16_t number_;
};

// All of these do nothing while no trace is recorded, or without an Id.

/// A part of the request begins, now or (of what was seen before it could be named) at `time`.
inline void begin_at(uint64_t time, Id request, const char* name, Range range = {},
                     const char* reason = nullptr) {
  if (request != 0) [[unlikely]]
    detail::begin_at(time, request, name, range, reason);
}
inline void begin(Id request, const char* name, Range range = {}, const char* reason = nullptr) {
  if (request != 0) [[unlikely]]
    detail::begin_at(now(), request, name, range, reason);
}
/// ...and ends. What lies within and has not ended, ends with it.
inline void end(Id request, const char* name, const char* outcome, const char* why = nullptr) {
  if (request != 0) [[unlikely]]
    detail::end(request, name, outcome, why);
}
/// Something that takes no time. Without a track (0) it is about the whole machine.
inline void mark(Id track, const char* name, const char* reason = nullptr) {
  if (on()) [[unlikely]]
    detail::mark(track, name, reason);
}

/// "ok", or the error's errno or kind.
const char* outcome_of(const Result<>& result);

/// The next operation called on this thread is part of `request`.
inline void hand_down(Id request) {
  detail::handed = request;
}
/// What was handed down, once; 0 if nothing was.
inline Id taken() {
  if (!on()) [[likely]]
    return 0;
  const Id request = detail::handed;
  detail::handed = 0;
  return request;
}
inline void forget() {
  detail::handed = 0;
}

}  // namespace spindle::trace
