// Making a raw image: a file of the right length, whose space may be reserved beforehand.
#pragma once

#include <memory>
#include <vector>

#include "block/format_registry.h"

namespace spindle {

/// `preallocation` off (the file is a hole), falloc (its space is reserved, without writing) or full (zeroes
/// are written). What `file` held is gone. A block device keeps its size, which must be enough, and its
/// content. Durable when it returns.
Task<Result<>> create_raw(std::shared_ptr<Node> file, CreateOptions options);

std::vector<CreateOptionHelp> raw_create_options();

/// Format::measure: the whole length, in sectors, whatever is in use, since the length is what a file has.
Result<Measure> measure_raw(const CreateOptions& options,
                            const std::function<uint64_t(uint64_t)>& data_clusters);

}  // namespace spindle
