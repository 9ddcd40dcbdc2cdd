// The edges of VDI's own order, each of which tests leave out on purpose, one at a time, to prove that it
// would be noticed. Never set outside tests.
#pragma once

#include <cstdint>

namespace spindle::vdi {

enum class Mutation : uint8_t {
  None,
  CountNotRaised,       ///< the allocated count stays where it was
  CountWithPointers,    ///< the allocated count is written with the pointers, not before them
  AllPlacesReady,       ///< pointers to space that was just made need no barrier
  HolesNotZeroed,       ///< space that is used again keeps what it held
  ReuseBeforeBarrier,   ///< space is used again though the durable map may point to it
  CloseCountTooLow,     ///< closing lowers the allocated count below the highest place
  CloseCutsTooMuch,     ///< closing cuts the last block off
  MoveWithoutBarrier,   ///< a block's entry goes to its new place before the copy is durable
  CutBeforePointers,    ///< the file is cut before the moved blocks' entries are durable
  CountBeforePointers,  ///< the allocated count is lowered before the moved blocks' entries are durable
  SwitchBeforeMap,      ///< the header points to a moved map before that is durable
  TailNotZeroed,        ///< a disk that grows shows what lay behind its old end
  EntriesBeforeSize,    ///< a disk that shrinks loses its entries before its size is durable
  BlocksBeforeMap,      ///< a disk that grows has its new size before the new entries are durable
  SplitWithoutCount,    ///< a block used twice is copied to a place that the count does not cover
};

}  // namespace spindle::vdi
