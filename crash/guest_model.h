// GuestModel: for each sector of the guest's disk the contents it may legally have after a power cut at some
// position of the history.
//
// A content is legal if a write put it there that had been submitted by then, unless a later write that is
// durable has taken its place: one that was submitted after the first had completed. What the disk held at
// the start counts as a write before all others. Durable, for the guest, is (docs/durability.md)
//
//   D1  what had completed before the submission of a flush that has completed
//   D2  what completed while the cache was off, and a completed FUA write
//   D3  what had completed before the cache was turned off, once that has completed: what completed earlier
//   is
//       flushed by it, and what completes meanwhile pays its own flush
//
// Zero-writes are writes of zeroes. A discard makes zeroes legal and takes nothing away (D7). A write that
// failed stays legal. A resize to a larger size is a write of zeroes to all that it adds; one to a smaller
// size is one to what it cuts off, but cannot be seen before it is durable: whoever finds the old size finds
// what was there. The sizes themselves
// follow the same rule as contents do.
//
// Threading: one thread a model; the history is only read.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "crash/history.h"

namespace spindle::crash {

class GuestModel {
 public:
  explicit GuestModel(const History& history);
  /// One that stays as it is: what is legal was worked out before. `contents` outlives it.
  struct Expectation {
    std::vector<std::pair<uint64_t, std::vector<ContentId>>> sectors;  ///< in order
    std::vector<uint64_t> sizes;
  };
  GuestModel(const ContentStore& contents, Expectation expectation);

  /// What is legal just before position `at`. Positions only ever rise.
  void move_to(Position at);

  /// Of a guest sector; never empty, no content twice.
  std::span<const ContentId> legal(uint64_t sector) const {
    const auto found = sectors_.find(sector);
    return found == sectors_.end() ? std::span<const ContentId>(&kZero, 1) : found->second.legal;
  }
  /// Sectors that may hold anything but zeroes, in order.
  const std::vector<uint64_t>& touched() const { return touched_; }
  std::span<const uint64_t> legal_sizes() const { return legal_sizes_; }
  const ContentStore& contents() const { return *store_; }

 private:
  struct Version {
    Position submitted;
    Position completed;
    Position durable;
    ContentId content;
    bool adds_only;       // a discard: takes nothing away
    bool silent = false;  // a cut: not to be seen before it is durable, only what it takes away
  };
  struct SectorState {
    std::vector<Version> versions;
    std::vector<ContentId> legal;
  };
  struct SizeVersion {
    Position submitted, completed, durable;
    uint64_t size;
  };

  void add(uint64_t from, uint64_t to, const GuestEvent& event, Position durable, bool pattern,
           bool adds_only, bool silent = false);
  void zero_known(uint64_t from, uint64_t to, const GuestEvent& event, Position durable);
  Position durable_from(const History& history, std::size_t index) const;

  static constexpr ContentId kZero = kZeroContent;

  const ContentStore* store_;
  std::unordered_map<uint64_t, SectorState> sectors_;
  std::vector<uint64_t> touched_;
  std::vector<SizeVersion> sizes_;
  std::vector<uint64_t> legal_sizes_;
  std::vector<std::pair<Position, uint64_t>> changes_;  // sectors whose legal contents change at a position
  std::size_t next_change_ = 0;
  std::vector<std::pair<Position, Position>> off_;  // [from, to): the cache is off for sure
};

}  // namespace spindle::crash
