// Checking and repairing VDI images.
//
// What is found: places used twice; entries that name no place of the file; an allocated count that a used
// place lies at or above, so that another program would overwrite it (all corruptions); a file that ends
// within a block that is used (a corruption); places that nothing uses, in the file or below the count
// (leaks). A header or map that contradicts itself is an error, as it is when opening.
//
// Repair, each step durable before the next builds on it:
//
//   1  raise the allocated count over all used places, and over those that step 2 needs; lengthen a file that
//   ends
//      within a block; copy what is used twice to places of its own for all but the first user. Barrier.
//   2  point those blocks to their copies; drop entries that name no place. Barrier.
//   3  leaks: compact.h.
//
// Copies that would take more than a GiB, and more than the file has, are not made: then most of the map is
// lost.
//
// After a crash at any point the same repair ends it: until step 2 is durable nothing has moved, and what
// step 1 made is a leak.
#pragma once

#include "block/format_registry.h"
#include "formats/vdi/mutation.h"

namespace spindle::vdi {

/// Format::check. A file that cannot be written is only checked: ReadOnly if there is anything to mend.
Task<Result<CheckReport>> check(Node& file, Repair repair, Mutation mutation);

}  // namespace spindle::vdi
