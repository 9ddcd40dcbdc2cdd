// Ring: what one thread has recorded and the Tracer has not written yet. One writer, one reader, no lock.
//
// It has a fixed size. What does not fit is lost, and counted. The last quarter is kept for ends: a burst
// loses requests that begin, rather than the ends of those that are in the trace.
//
// A thread gets its ring with its first record. It stays for as long as the thread does, and for the reader
// until it has been read to its end.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "block/trace/trace.h"

namespace spindle::trace {

/// Without initial values: a ring's memory is touched as far as it is used.
struct Record {
  enum class Kind : uint8_t { Begin, End, Mark };
  uint64_t time;
  Id request;
  const char* name;
  const char* word;  ///< of a begin or a mark the reason, of an end the outcome
  const char* why;
  uint64_t offset;
  uint64_t length;
  Kind kind;
};
static_assert(sizeof(Record) == 64 && std::is_trivial_v<Record>);

class Ring {
 public:
  static constexpr uint64_t kRecords = 1 << 15;  // 2 MiB

  Ring(unsigned number, std::string name) : number_(number), name_(std::move(name)) {}

  // ---- its thread ----
  void push(const Record& record) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    const uint64_t most = record.kind == Record::Kind::End ? kRecords : kRecords - kRecords / 4;
    if (head - tail_seen_ >= most) {
      tail_seen_ = tail_.load(std::memory_order_acquire);
      if (head - tail_seen_ >= most) {
        lost_.store(lost_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        return;
      }
    }
    records_[head % kRecords] = record;
    head_.store(head + 1, std::memory_order_release);
  }
  void thread_ended() { ended_.store(true, std::memory_order_release); }

  // ---- the reader ----
  /// Calls `visit` for what is there now, and makes room.
  template <typename Visit>
  void drain(Visit visit) {
    uint64_t tail = tail_.load(std::memory_order_relaxed);
    const uint64_t head = head_.load(std::memory_order_acquire);
    for (; tail != head; ++tail) visit(records_[tail % kRecords]);
    tail_.store(tail, std::memory_order_release);
  }
  bool thread_has_ended() const { return ended_.load(std::memory_order_acquire); }

  // ---- any thread ----
  unsigned number() const { return number_; }
  const std::string& name() const { return name_; }
  /// Records that did not fit, ever.
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  const unsigned number_;
  const std::string name_;
  alignas(64) std::atomic<uint64_t> head_{0};
  uint64_t tail_seen_ = 0;  // the thread's
  std::atomic<uint64_t> lost_{0};
  std::atomic<bool> ended_{false};
  alignas(64) std::atomic<uint64_t> tail_{0};  // the reader's
  const std::unique_ptr<Record[]> records_ = std::make_unique_for_overwrite<Record[]>(kRecords);
};

/// For the one reader there is: all rings, of which those of threads that have ended go once they were
/// visited.
void each_ring(const std::function<void(Ring&)>& visit);

/// What the track is called. Empty: it was never named.
std::string track_name(uint16_t number);
/// While a trace is recorded names outlive their tracks; between traces not.
void keep_track_names(bool keep);

}  // namespace spindle::trace
