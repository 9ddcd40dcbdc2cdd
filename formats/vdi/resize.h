// Giving a VDI image another size. The header's one sector, which is written whole or not at all, is what
// switches from one size to the other.
//
// Growing where the map has room before the data:
//   zero what the last block holds behind the old end; write the new entries; barrier; header; barrier
//
// Growing where it has not: the map moves to where the first blocks are, and the data area begins behind it.
// All places then are fewer by those blocks, in a new map at a new offset, so the old one stays as it is
// until the switch.
//   raise the count; copy the first blocks to the end; barrier; their entries; barrier;
//   write the new map over their old places; barrier; header with the new map's and data's offsets; barrier
//
// Shrinking:
//   header with the new size; barrier; drop the entries behind it; barrier; compact (compact.h);
//   header with the new number of blocks; barrier
#pragma once

#include "block/node.h"
#include "formats/vdi/header.h"
#include "formats/vdi/mutation.h"

namespace spindle::vdi {

/// Invalid if an image with this header cannot become a disk of `size` bytes.
Result<> can_resize(const Header& header, uint64_t size, const std::string& name);

/// The image in `file` becomes a disk of `size` bytes, which can_resize() allows. No two of its entries name
/// one place. Durable when it returns.
Task<Result<>> resize(Node& file, uint64_t size, Mutation mutation);

}  // namespace spindle::vdi
