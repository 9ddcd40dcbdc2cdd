// A command of the user's that judges states: the disk as the guest finds it after the power cut is written
// to a file, and the command is given its name. So whoever knows what was on the disk can say whether it is
// still right: a file system's check, a database's.
//
// Blocks, and starts programs: for tools.
#pragma once

#include <string>

#include "crash/explore.h"

namespace spindle::crash {

struct CommandCounts {
  uint64_t states = 0;
  uint64_t failed = 0;
  std::string first;  ///< of those that failed, what it said
};

/// `command` is for the shell; the file's name comes behind it. Exit status 0: the state is good. An error
/// where a state cannot be opened or written out.
Result<CommandCounts> ask_command(Reactor& reactor, const History& history, const Subject& subject,
                                  Tearing tearing, uint64_t seed, uint64_t states,
                                  const std::string& command);

}  // namespace spindle::crash
