#include "vmm/output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

namespace spindle::vmm {
namespace {

constexpr int kPatienceMilliseconds = 1000;
// After EAGAIN from a descriptor that poll() calls writable (a terminal with room for one byte, and a line
// feed needs two).
constexpr int kRetryMilliseconds = 10;
constexpr int kMaxRetries = kPatienceMilliseconds / kRetryMilliseconds;

void write_all(int fd, std::string_view text) {
  for (int retries = 0; !text.empty() && retries < kMaxRetries;) {
    pollfd writable{fd, POLLOUT, 0};
    const int ready = poll(&writable, 1, kPatienceMilliseconds);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return;
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written > 0) {
      text.remove_prefix(static_cast<size_t>(written));
      retries = 0;
    } else if (written < 0 && errno == EAGAIN) {
      ++retries;
      poll(nullptr, 0, kRetryMilliseconds);
    } else if (written < 0 && errno != EINTR) {
      return;
    }
  }
}

struct Prepared {
  bool done = false;
  Fd terminal;
} prepared;

}  // namespace

void prepare_to_say() {
  prepared.terminal = open_nonblocking_terminal(STDERR_FILENO);
  prepared.done = true;
}

void say_line(std::string_view line) noexcept {
  write_all(prepared.terminal ? prepared.terminal.get() : STDERR_FILENO, line);
}

void say(std::string_view text) noexcept {
  try {
    const std::string line = std::string(text) + "\n";
    if (prepared.done) return say_line(line);
    const Fd terminal = open_nonblocking_terminal(STDERR_FILENO);
    write_all(terminal ? terminal.get() : STDERR_FILENO, line);
  } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for the line, and this is where one would say so
  }
}

Fd open_nonblocking_terminal(int fd) {
  unsigned number;
  // The controlling side of a pseudo-terminal is no terminal to us: opening it makes a new one.
  if (!isatty(fd) || ioctl(fd, TIOCGPTN, &number) == 0) return {};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return Fd(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace spindle::vmm
