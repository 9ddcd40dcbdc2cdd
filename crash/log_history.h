// A history from the log of a recorded disk (`--disk ...,record=F`): its file's side only, since the log
// knows nothing of the guest.
//
// Blocks: for tools, not for a reactor.
#pragma once

#include <string>

#include "block/result.h"
#include "crash/history.h"

namespace spindle::crash {

/// As LogReader: NotFound and others, Invalid if it is no such log or holds what cannot be. A log that was
/// cut off ends where it ends: what had not completed by then is in doubt.
Result<History> history_of_log(const std::string& path);

}  // namespace spindle::crash
