// The edges of the running image's own order, each of which tests leave out on purpose, one at a time, to
// prove that it would be noticed. Never set outside tests.
#pragma once

#include <cstdint>

namespace spindle::qcow2 {

enum class NodeMutation : uint8_t {
  None,
  AllSpaceReady,         ///< pointers to space that was just counted and zeroed need no barrier
  CountsWithPointers,    ///< counts are written with the pointers, not before them
  HolesNotZeroed,        ///< space that is used again keeps what it held
  ReuseBeforeBarrier,    ///< space is used again though the durable tables may point to it
  FreedAtOnce,           ///< space is given back when its pointer is gone from memory, not from the file
  FreedUnderRequests,    ///< space is given back though requests that saw the old pointer still run
  CopyNotDurable,        ///< pointers to copied or compressed data need no barrier
  EntryBeforeCopy,       ///< a pointer to a copy is set before the copy is written
  TablesWithPointers,    ///< new L2 tables are written with the pointers to them
  BlockUsedEarly,        ///< counts of a new refcount block are relied on before the table points to it
  BlockNotCounted,       ///< a new refcount block does not count itself
  TableSwitchedEarly,    ///< the header points to a moved refcount table before that is durable
  OldTableFreedEarly,    ///< the place of a moved table is free before the header points to the new one
  SizeBeforeTable,       ///< a disk that grows has its new size before the new L1 table is durable
  EntriesBeforeSize,     ///< a disk that shrinks loses its entries before its size is durable
  TailNotZeroed,         ///< a disk that grows shows what lay behind its old end
  CloseCutsTooMuch,      ///< closing cuts the last cluster off
  CloseCountsTooLow,     ///< closing counts a cluster as free that is in use
  CompressedNotCounted,  ///< a second stream in a cluster does not count
};

}  // namespace spindle::qcow2
