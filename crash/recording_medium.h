// RecordingMedium: a file in memory under a seeded order of events, and the history of all that reaches it.
//
// Every operation stops inside until complete_one() lets one go on, chosen by the generator: so operations
// overtake each other, overlap, and are in flight while a flush begins, in an order that a seed brings back.
// A change is visible to readers from its completion on. No ring and no clock takes part.
//
// Options double media that are worse than most:
// - `extends`: a write beyond the end makes the file longer, as a file system would let it. Files of this
//   program's own refuse (block/protocols/file_node.h); without it so does this one.
// - `loses_racing_data`: XFS before Linux 5.5. A write that is in flight, at or beyond the end of the file,
//   while the file grows, leaves zeroes.
//
// Threading: the reactor's thread.
#pragma once

#include <coroutine>
#include <random>
#include <vector>

#include "block/node.h"
#include "crash/history.h"
#include "crash/run.h"

namespace spindle::crash {

class RecordingMedium final : public Node {
 public:
  struct Options {
    uint64_t seed = 1;
    bool extends = false;
    bool loses_racing_data = false;
    /// Without a guest: each operation completes at once and nothing is in flight with another.
    bool immediate = false;
  };
  /// Records into `history`, whose base is what the file holds; both outlive this.
  RecordingMedium(Reactor& reactor, History& history, Options options);

  /// The next position in the order of events.
  Position tick() { return history_.end++; }
  bool pending() const { return !held_.empty(); }
  /// Lets one operation go on. There is one.
  void complete_one();
  const SectorImage& image() const { return live_; }

  const NodeFacts& facts() const override { return facts_; }
  uint64_t size() const override { return live_.size(); }
  Task<Result<>> read(uint64_t offset, Buffers buffers) override;
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override;
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override;
  Task<Result<>> discard(uint64_t offset, uint64_t length) override;
  Task<Result<>> flush() override;
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override;
  Task<Result<>> resize(uint64_t size) override;
  Task<Result<>> close() override { return finished(Result<>{}); }

 private:
  struct Turn;
  Result<> check_writable_range(const char* operation, uint64_t offset, uint64_t length) const;
  std::size_t submit(Operation operation);
  Task<Result<>> carry_out(std::size_t index);
  void lose_what_races(const Operation& growth);

  History& history_;
  Options options_;
  std::mt19937_64 random_;
  NodeFacts facts_;
  ContentStore& contents_;
  SectorImage live_;
  std::vector<std::coroutine_handle<>> held_;
};

/// Runs `task` to its end while the medium lets operations go on, one after the other.
template <typename T>
T run_over(RecordingMedium& medium, Task<T> task) {
  std::optional<T> value;
  spawn(std::move(task), [&value](T result) { value.emplace(std::move(result)); });
  run_now(medium.reactor(), [](RecordingMedium& m, const std::optional<T>& v) -> Task<bool> {
    while (!v) {
      if (m.pending()) m.complete_one();
      co_await m.reactor().yield();
    }
    co_return true;
  }(medium, value));
  return std::move(*value);
}

}  // namespace spindle::crash
