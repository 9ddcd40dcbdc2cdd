// Copying all of one disk onto another: the inner part of `img convert`.
//
// Several coroutines each take the next piece of the source, read it into a buffer of their own and write it.
// So reading, writing and looking for zeroes overlap, on one thread and one ring. What the source says is a
// hole is not read. Pieces are aligned to their size, which is a multiple of every common cluster: a target
// that allocates sees whole clusters where the source has them.
//
// Order: pieces are handed out in the order of the image, and unless `out_of_order` their writes are also
// begun in it. A target that allocates as writes come thus lays the image out in order, although writes may
// well be in flight together. Nothing here makes anything durable; the caller flushes.
//
// Zeroes: a target that reads as zeroes all over (a fresh one) is not written with zeroes. Any other is, as
// zero-writes that may give space back. With `sparse` 0 zeroes are data like any other and all of the source
// is read, so the target is fully allocated.
//
// Write-out: a kernel leaves dirty pages alone until there are many, and then the flush at the end has all of
// them before it. So the copy asks for them to be written as it goes (`write_out`), and the disk works while
// the rest is read. That is a hint: what it says about errors is ignored, since the flush hears of all.
//
// The first error ends the copy; what was in flight is waited for. With `salvage` what cannot be read is
// none: it is read again sector by sector, and the sectors that fail are zeroes in the target.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "block/disk.h"
#include "image/progress.h"

namespace spindle::image {

struct CopyOptions {
  unsigned coroutines = 8;    ///< 1 to 16
  bool out_of_order = false;  ///< -W
  uint64_t sparse = 4096;     ///< bytes of zeroes that are worth a hole; a multiple of 512, or 0
  bool target_is_zero = false;
  int write_out = -1;  ///< an open file of the target whose pages are to be written early; -1: none
  uint64_t begin = 0;  ///< the first byte of the source that is copied; inside it
  std::optional<uint64_t> end = std::nullopt;  ///< the byte behind the last; else all
  uint64_t target_offset = 0;                  ///< where the first byte goes
  /// Called for what cannot be read: then a sector of it becomes zeroes. Without it that is an error.
  std::function<void(const Error&)> salvage = {};
};

/// Copies `source` onto `target`, which has room for it. What is before and behind it in the target stays as
/// it is. `job` tells the progress of all that is copied, of which this is a part.
Task<Result<>> copy_disk(Disk& source, Disk& target, CopyOptions options, JobProgress& job);

/// Whether all of `disk` reads as zeroes, as far as its map tells without reading.
Task<Result<bool>> reads_as_zeroes(Disk& disk);

}  // namespace spindle::image
