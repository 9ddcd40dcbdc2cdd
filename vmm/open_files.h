// The limit of open files (RLIMIT_NOFILE). Each queue of a disk takes an eventfd when the disk is made and
// another when the guest programs its vector: too late to be refused, so there must be room before.
#pragma once

#include <cstdint>

#include "block/result.h"

namespace spindle::vmm {

/// Raises the limit, if need be and allowed, so that `count` files can be opened besides what the monitor has
/// open otherwise. The error is for the user.
Result<> make_room_for_open_files(uint64_t count);

}  // namespace spindle::vmm
