// Where a disk holds data, and how many clusters of some size that touches: what an image of another format
// would need for it.
#pragma once

#include <cstdint>
#include <vector>

#include "block/disk.h"

namespace spindle::image {

/// The stretches of `disk` that hold data, in order, none touching the next.
Task<Result<std::vector<ByteRange>>> data_runs(Disk& disk);

/// How many clusters of `cluster` bytes, which is not 0, the stretches touch; as data_runs() returns them.
uint64_t clusters_touched(const std::vector<ByteRange>& runs, uint64_t cluster);

}  // namespace spindle::image
