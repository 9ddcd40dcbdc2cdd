// Making VDI images.
//
//   create options: static=on gives every block its place at once; block_size, a power of two, is what other
//   programs may not be able to read if it is not 1 MiB
//
// The data area begins at a multiple of the block size, so that blocks lie as the host's do.
#pragma once

#include "block/format_registry.h"
#include "formats/vdi/header.h"

namespace spindle::vdi {

std::vector<CreateOptionHelp> create_option_help();

/// Format::create. The header is written when all else is durable, so what was interrupted is no image.
Task<Result<>> create(Node& file, CreateOptions options);

/// Format::measure.
Result<Measure> measure(const CreateOptions& options, const std::function<uint64_t(uint64_t)>& data_clusters);

}  // namespace spindle::vdi
