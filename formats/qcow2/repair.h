// Repair: what a check found, mended in an order that is safe at any crash point.
//
//   1. entries that point nowhere are cleared: those ranges of the disk read as zeroes; bitmaps that cannot
//   be
//      read are dropped. Barrier.
//   2. counts that are too low are raised, or all counts are written anew into free space behind everything
//      that is in use; barrier; the header's twelve bytes then point to them. Barrier.
//   3. counts that are too high are lowered. Barrier.
//   4. copied flags follow the counts. Barrier.
//   5. the dirty and corrupt bits are cleared, if nothing is left. Barrier.
//
// Each word that is written says the truth by itself, whichever others were lost with it. If references could
// not be followed, counts are not touched: nobody knows who uses what.
#pragma once

#include <memory>

#include "formats/qcow2/check.h"

namespace spindle::qcow2 {

/// Durable when it returns. What could not be mended is left for the next look to tell. Corrupt if a cluster
/// has more users than the image's counts can say.
Task<Result<>> mend(Node& file, std::unique_ptr<Survey> survey, Repair repair, ImageMutation mutation);

}  // namespace spindle::qcow2
