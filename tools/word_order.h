// Command lines as getopt_long() reads them, which is how QEMU's tools do: options and names in any order,
// options of one letter joined, long ones cut short as long as they are unmistakable, the last value of an
// option that is given twice, and a value that may begin with a dash.
//
// What comes out is the same command line in an order and spelling that leave the parser no choice.
#pragma once

#include <CLI/CLI.hpp>
#include <expected>
#include <string>
#include <vector>

namespace spindle::tools {

/// The words behind the name of `command`, options first, then "--" and the names if there are any. Or a line
/// in qemu-img's words: an option that `command` does not have, or one without its value. Not thread-safe.
std::expected<std::vector<std::string>, std::string> ordered_words(const CLI::App& command,
                                                                   const std::vector<std::string>& words);

}  // namespace spindle::tools
