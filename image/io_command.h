// What io_shell.cc and io_commands.cc share: a row of the table of commands.
#pragma once

#include "image/io_shell.h"

namespace spindle::image {

struct IoShell::Command {
  const char* name;
  const char* alias;
  const char* letters;  ///< its options, for parse_io_arguments()
  std::size_t least;    ///< arguments besides them
  std::size_t most;
  bool needs_image;
  const char* usage;
  const char* summary;
  bool (IoShell::*action)(const IoArguments&);  ///< null: quit
};

}  // namespace spindle::image
