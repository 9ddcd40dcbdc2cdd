// What a qcow2 image says of itself.
#pragma once

#include "block/format_registry.h"

namespace spindle::qcow2 {

/// Format::describe. Reads header, snapshots and bitmaps, and no table. An image whose L1 or refcount table
/// lies nowhere is described too: only a check can mend it.
Task<Result<ImageDescription>> describe(Node& file);

}  // namespace spindle::qcow2
