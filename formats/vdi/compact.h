// Compacting: moves the last blocks of an image into places that nothing uses, and cuts the file behind the
// last.
//
//   copy the blocks; barrier; write their entries; barrier; lower the allocated count and cut the file;
//   barrier
//
// A block is at its old place until its entry is durable, and its copy was durable before; the old place is
// given up after. All moves share these barriers, since no place is both left and taken.
#pragma once

#include "block/format_registry.h"
#include "formats/vdi/image.h"

namespace spindle::vdi {

/// Requires that no two entries name one place and that all are in the file. Adds to `report` what was freed:
/// places that nothing used. Durable when it returns.
Task<Result<>> fill_holes(Image& image, CheckReport& report, Mutation mutation);

/// Takes the places of blocks that are all zeroes from them, then the above. Corrupt if the image has to be
/// repaired first.
Task<Result<CheckReport>> compact(Node& file, Mutation mutation);

}  // namespace spindle::vdi
