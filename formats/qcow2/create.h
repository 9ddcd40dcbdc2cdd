// Making qcow2 images, and what they say of themselves.
#pragma once

#include "block/format_registry.h"
#include "formats/qcow2/create_plan.h"

namespace spindle::qcow2 {

/// Format::create. The header is written when all else is durable, so what was interrupted is no image. An
/// image with a data file needs CreateOptions::make_data_file, which is given the name as it was typed.
Task<Result<>> create(Node& file, CreateOptions options);

}  // namespace spindle::qcow2
