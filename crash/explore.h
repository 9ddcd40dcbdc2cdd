// Exploring a history: every crash point, every state of it (or a sample), a verdict of each.
//
// The budget of states is shared among the crash points so that small ones are gone through completely and
// what they leave over goes to the large ones; it depends on the history alone, so a seed brings back the
// same states whatever the number of threads.
//
// States are counted that differ: two with the same bytes in the same file size are one, whichever crash
// point they belong to. Where they belong to two points both are judged, since more had been promised by the
// later one.
//
// Threading: explore() starts its own threads, each with a reactor, an image, a model and a judge of its own;
// the history is shared and only read.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <unordered_set>

#include "crash/enumerate.h"
#include "crash/verdict.h"

namespace spindle::crash {

struct ExploreOptions {
  Tearing tearing = {};
  uint64_t seed = 1;
  uint64_t states = 100'000;  ///< at most so many, over all crash points
  unsigned jobs = 1;
  Depth depth = Depth::Full;
  /// Bad states kept of each kind.
  std::size_t keep = 1;
  /// Counted up as states are judged, if given: for showing progress from another thread.
  std::atomic<uint64_t>* progress = nullptr;
  /// Ends the exploration early once set.
  const std::atomic<bool>* stop = nullptr;
};

/// A state, by how it comes about in its history.
struct StateKey {
  Position point = 0;
  Choices choices;
};

struct BadExample {
  StateKey key;
  Verdict verdict;
};

struct Exploration {
  uint64_t judged = 0;
  std::unordered_set<uint64_t> distinct;  ///< hashes
  uint64_t points = 0;
  uint64_t complete_points = 0;
  uint64_t clean = 0, leaking = 0, recovered = 0, corrupt = 0;  ///< of those judged; each is one of these
  std::array<uint64_t, kCorruptions> by_kind{};
  std::map<Corruption, std::vector<BadExample>> examples;
  double seconds = 0;

  bool complete() const { return points == complete_points; }
  void add(Exploration&& other);
};

/// An error only if a thread cannot have a reactor.
Result<Exploration> explore(const History& history, const Subject& subject, const ExploreOptions& options);

/// What judging single states of a history takes: for minimising and for writing them out.
class Laboratory {
 public:
  Laboratory(Reactor& reactor, const History& history, const Subject& subject, Tearing tearing, Depth depth);

  /// Goes to a crash point; never back.
  void move_to(Position point);
  Verdict judge(const Choices& choices, bool describe);
  const EpochCursor& cursor() const { return cursor_; }
  const GuestModel& model() const { return model_; }
  /// With all that is settled, and nothing in doubt.
  SectorImage& image() { return image_; }
  const History& history() const { return history_; }

 private:
  const History& history_;
  ContentStore contents_;
  SectorImage image_;
  EpochCursor cursor_;
  GuestModel model_;
  Judge judge_;
};

/// The fewest operations, and parts of them, that still give a corruption of this kind at the same point.
/// `laboratory` is at the key's point.
Choices minimise(Laboratory& laboratory, const Choices& choices, Corruption kind);

}  // namespace spindle::crash
