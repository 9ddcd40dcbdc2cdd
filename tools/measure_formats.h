// What images of the formats that do not measure themselves would need (Format::measure): raw and vdi.
#pragma once

#include "block/format_registry.h"

namespace spindle::tools {

/// Gives raw and vdi, where they are registered and have none, their Format::measure.
void add_measures(FormatRegistry& formats);

}  // namespace spindle::tools
