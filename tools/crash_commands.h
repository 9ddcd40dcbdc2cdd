// The parts of `spindle crash` that live in files of their own.
#pragma once

#include "tools/command.h"

namespace spindle::tools {

/// explore, table and replay.
void add_crash_explore(CLI::App& crash, Action& action);

}  // namespace spindle::tools
