// The list of formats. block/ knows none of them: whoever opens disks registers these first.
#pragma once

#include "block/graph.h"

namespace spindle {

void register_formats(FormatRegistry& registry);

}  // namespace spindle
