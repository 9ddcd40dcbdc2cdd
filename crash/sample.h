// A sample of a history's states, spread over its crash points by a seed: for judges that take long.
//
// Threading: the calling thread.
#pragma once

#include <functional>

#include "crash/explore.h"

namespace spindle::crash {

/// Calls `look(point)` for `states` states of the laboratory's history, each of which laboratory.image()
/// shows meanwhile. Ends with the first error that it returns.
Result<> for_sample(Laboratory& laboratory, uint64_t seed, uint64_t states,
                    const std::function<Result<>(Position point)>& look);

}  // namespace spindle::crash
