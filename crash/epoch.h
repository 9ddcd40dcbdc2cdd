// Epochs: for one crash point after the other, which operations are settled, which are in doubt, and in what
// ways each of these may have reached the medium.
//
// What may be assumed of a medium, between two points at which something becomes durable:
// - Of the operations that are not durable any subset has reached it, each in whole or torn: at sectors of
//   512 bytes or at pages of 4096, whichever is asked for.
// - Of two that meet in a place, one that had completed before the other was submitted never ends up on top
//   of it. Two that were in flight together may be in either order.
// - A resize is an operation like others, and whole; it stands where it completed.
//
// An operation that is durable is settled, that is, becomes part of the image under all states, once nothing
// in doubt that it meets could lie under or over it. Until then it is listed as forced: always whole.
// Operations in flight together that are both settled lie in the order they completed in, which is what
// readers saw.
//
// The same state may be possible at several points. It is judged at the last one before more became durable,
// since by then most was promised; operations submitted meanwhile need not have reached the medium.
//
// Threading: a cursor belongs to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "crash/history.h"

namespace spindle::crash {

/// One way in which an operation reached the medium.
struct Variant {
  std::vector<ByteSpan> parts;  ///< empty: not at all
  /// Bit i: it lies under the i-th of Doubt::together rather than over it.
  uint32_t under = 0;
  bool whole = false;
};

/// An operation of an epoch that is not settled.
struct Doubt {
  std::size_t operation = 0;  ///< of the history
  bool forced = false;        ///< durable: it has reached the medium in whole
  std::vector<std::size_t>
      together;  ///< earlier ones in the list, which it meets, was in flight with and may lie under
  std::vector<Variant> variants;  ///< not at all and in whole come first, as far as they are possible
};

/// Which variant of each doubt, in their order: a state.
using Choices = std::vector<uint16_t>;

/// How finely an operation tears.
struct Tearing {
  uint32_t unit = 512;  ///< bytes; 512 or 4096
  std::size_t all_of =
      3;  ///< of an operation of so many units all subsets are looked at; of longer ones some
};

class EpochCursor {
 public:
  /// `image` starts as history.base and is what settled operations are applied to.
  EpochCursor(const History& history, SectorImage& image, Tearing tearing);

  /// Settles what is settled just before `point`. Points only ever rise.
  void move_to(Position point);
  /// In the order of completion, those that have not completed last, by submission.
  const std::vector<Doubt>& doubts() const { return doubts_; }
  /// How many of the history's operations had been submitted by the point.
  std::size_t submitted() const { return next_; }
  /// How many choices there are, or the largest number if that is too small.
  uint64_t combinations() const;
  /// What of the doubt's operation is to be seen: its variant, but for what those that lie over it cover.
  std::vector<ByteSpan> parts_of(std::size_t doubt, const Choices& choices) const;
  /// Applies the doubt's variant to the image; those before it in the list have been.
  void apply_choice(std::size_t doubt, const Choices& choices) const;
  void apply_all(const Choices& choices) const {
    for (std::size_t i = 0; i < doubts_.size(); ++i) apply_choice(i, choices);
  }

 private:
  void settle(Position point);
  void make_doubts(Position point);
  std::vector<Variant> variants_of(const Operation& operation, const Doubt& doubt) const;

  const History& history_;
  SectorImage& image_;
  Tearing tearing_;
  std::size_t next_ = 0;                // of the history's operations
  std::vector<std::size_t> unsettled_;  // by submission
  std::vector<Doubt> doubts_;
};

}  // namespace spindle::crash
