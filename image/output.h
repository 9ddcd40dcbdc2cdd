// What a tool says: its result on standard output, notes and errors on standard error, one line each.
//
// A result that could not be written is an error of the tool, since whoever asked did not get it: a full disk
// behind a redirection must not end in status 0.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "block/result.h"

namespace spindle::image {

/// Lines for the user that are no result: warnings. Printed by whoever runs the tool.
using Notes = std::vector<std::string>;

/// Writes `text` to standard output now.
Result<> put(std::string_view text);

/// The outcome of what was written to standard output by other means so far.
Result<> output_state();

}  // namespace spindle::image
