// What tests need of the machine they run on: a directory of their own, programs of others, and a way to say
// that something is missing. A skipped test prints one line "skipped: REASON" on stdout, which scripts/test
// counts.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace spindle::test {

inline void skipped(std::string_view reason) {
  std::printf("skipped: %.*s\n", static_cast<int>(reason.size()), reason.data());
  std::fflush(stdout);
}

/// A directory under TMPDIR (or /tmp, or `parent`) that goes away with this object.
class TempDir {
 public:
  explicit TempDir(std::filesystem::path parent = std::filesystem::temp_directory_path()) {
    std::string name = (parent / "spindle-test-XXXXXX").string();
    if (::mkdtemp(name.data())) path_ = name;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  bool ok() const { return !path_.empty(); }
  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  /// A file of `size` zero bytes; its path.
  std::string file(std::string_view name, uint64_t size) const {
    const std::string path = file(name);
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(size)) != 0) std::abort();
    ::close(fd);
    return path;
  }

 private:
  std::string path_;
};

/// What a shell command printed (both streams) and its exit status.
struct Command {
  std::string output;
  int status = -1;
};
inline Command run_command(const std::string& command) {
  Command result;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return result;
  std::array<char, 4096> buffer;
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    result.output.append(buffer.data(), count);
  }
  const int status = ::pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

inline bool have_program(const std::string& name) {
  return run_command("command -v " + name).status == 0;
}

}  // namespace spindle::test
