// Programs of others that judge states, and where the files for them go.
//
// Blocks: for tools.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "block/result.h"

namespace spindle::crash {

struct ProgramRun {
  int status = -1;     ///< as the shell has it; 124: it took more than a minute
  std::string output;  ///< both streams
};

/// `words`: the program, looked up in PATH, and its arguments. Ended after a minute: an image that is wrong
/// may hang its reader. An error only if it could not be started.
Result<ProgramRun> run_program(std::vector<std::string> words);

std::string first_line(const std::string& text);

/// A directory of its own under the system's for temporary files, which goes away with this object.
class WorkDirectory {
 public:
  static Result<WorkDirectory> create();
  WorkDirectory(WorkDirectory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  WorkDirectory& operator=(WorkDirectory&&) = delete;
  ~WorkDirectory();
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  explicit WorkDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace spindle::crash
