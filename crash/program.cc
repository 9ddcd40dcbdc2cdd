#include "crash/program.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>

extern char** environ;

namespace spindle::crash {

Result<ProgramRun> run_program(std::vector<std::string> words) {
  words.insert(words.begin(), {"timeout", "60"});
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::unexpected(Error::from_errno(errno, "pipe", words[2]));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, "timeout", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  ProgramRun run;
  if (failed == 0) {
    std::array<char, 4096> buffer;
    for (;;) {
      const ssize_t got = ::read(ends[0], buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      run.output.append(buffer.data(), static_cast<std::size_t>(got));
    }
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    run.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  ::close(ends[0]);
  if (failed != 0) return std::unexpected(Error::from_errno(failed, "start", words[2]));
  return run;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

Result<WorkDirectory> WorkDirectory::create() {
  std::error_code failed;
  std::string name = (std::filesystem::temp_directory_path(failed) / "spindle-crash-XXXXXX").string();
  if (failed || !::mkdtemp(name.data()))
    return std::unexpected(Error::from_errno(failed ? failed.value() : errno, "make directory", name));
  return WorkDirectory(std::move(name));
}

WorkDirectory::~WorkDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace spindle::crash
