// Enumeration of an epoch's states: all of them while that is feasible, else a seeded sample in strata.
//
// All: the choices form a tree, doubt by doubt in the order of completion, and the image follows it, so a
// state costs what changed since the one before.
//
// A sample: first what goes wrong first where an order is missing, then chance:
//   prefixes and suffixes of the order of completion; each alone missing; each alone present; all metadata
//   without data and the reverse, and each prefix of the one with all of the other; each torn in each way,
//   with all others present and with none; then random subsets of all densities, torn ones among them.
//
// A state is visited once an epoch, however many choices lead to it (by the image's hash).
#pragma once

#include <functional>
#include <unordered_set>

#include "crash/epoch.h"

namespace spindle::crash {

struct EpochOutcome {
  uint64_t states = 0;    ///< distinct ones visited
  bool complete = false;  ///< there are no others
  bool stopped = false;   ///< the visitor wanted no more
};

/// Visits states of the cursor's epoch with `image` showing each, at most `budget`; the image is as before
/// afterwards. The visitor may change it (and whoever else), as long as it takes that back; false stops.
EpochOutcome enumerate(const EpochCursor& cursor, const History& history, SectorImage& image, uint64_t budget,
                       uint64_t seed, const std::function<bool(const Choices&)>& visit);

}  // namespace spindle::crash
