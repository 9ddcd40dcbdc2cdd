#include "vmm/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "vmm/terminal.h"

namespace spindle::vmm {
namespace {

constexpr uint8_t kCtrlA = 1;
constexpr std::string_view kHelp =
    "\r\n"
    "Ctrl-A h       this help\r\n"
    "Ctrl-A x       quit: stop the guest, flush and close its disks\r\n"
    "Ctrl-A Ctrl-A  send Ctrl-A to the guest\r\n";
// poll() calls a pipe writable when that much fits, so such a write does not block.
constexpr size_t kWriteSize = 4096;
constexpr int kLastOutputMilliseconds = 1000;

}  // namespace

Result<ConsoleOptions> ConsoleOptions::parse(const std::string& text) {
  if (text == "stdio") return ConsoleOptions{};
  if (text == "none") return ConsoleOptions{.kind = Kind::None};
  if (text.starts_with("file:") && text.size() > 5)
    return ConsoleOptions{.kind = Kind::File, .file = text.substr(5)};
  return std::unexpected(Error::invalid("console", text, "use stdio, none or file:F"));
}

ConsoleKeys::Action ConsoleKeys::feed(uint8_t byte, std::vector<uint8_t>& guest) {
  if (!escaped_) {
    escaped_ = byte == kCtrlA;
    if (!escaped_) guest.push_back(byte);
    return Action::None;
  }
  escaped_ = false;
  switch (byte) {
    case 'x':
      return Action::Quit;
    case 'h':
    case '?':
      return Action::Help;
    case kCtrlA:
      guest.push_back(kCtrlA);
      return Action::None;
    default:
      return Action::None;
  }
}

Console::Console(Fd wake, int input, int output, Fd file, bool stdio)
    : wake_(std::move(wake)), file_(std::move(file)), input_(input), output_(output), stdio_(stdio) {}

Result<std::unique_ptr<Console>> Console::create(const ConsoleOptions& options) {
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return std::unexpected(Error::from_errno(errno, "eventfd", "the console"));
  Fd file;
  int input = -1, output = -1;
  switch (options.kind) {
    case ConsoleOptions::Kind::Stdio:
      input = STDIN_FILENO;
      output = STDOUT_FILENO;
      break;
    case ConsoleOptions::Kind::None:
      break;
    case ConsoleOptions::Kind::File:
      // O_NONBLOCK: a FIFO without a reader is an error instead of a wait; nothing here relies on writes that
      // block.
      file = Fd(open(options.file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666));
      if (!file) {
        Error error = Error::from_errno(errno, "open", "console file " + options.file);
        error.detail = "it must be possible to create and write it";
        return std::unexpected(std::move(error));
      }
      output = file.get();
      break;
  }
  return std::unique_ptr<Console>(new Console(std::move(wake), input, output, std::move(file),
                                              options.kind == ConsoleOptions::Kind::Stdio));
}

Console::~Console() {
  stop();
}

void Console::start(legacy::SerialPort& port, std::function<void()> quit) {
  port_ = &port;
  quit_ = std::move(quit);
  discard_ = output_ < 0;
  if (stdio_) Terminal::make_raw(STDIN_FILENO);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "console");
    main();
  });
}

void Console::stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
  thread_.join();
  if (stdio_) Terminal::restore();
}

void Console::wake() {
  eventfd_write(wake_.get(), 1);  // fails only if it is signalled already
}

bool Console::transmit(uint8_t byte) {
  std::lock_guard lock(mutex_);
  if (discard_) return true;
  if (output_bytes_.size() >= kOutputLimit) {
    line_full_ = true;
    return false;
  }
  output_bytes_.push_back(byte);
  if (output_bytes_.size() == 1) wake();
  return true;
}

void Console::input_taken() {
  if (input_waits_.load()) wake();
}

void Console::main() {
  while (true) {
    bool have_output, stop;
    {
      std::lock_guard lock(mutex_);
      have_output = !output_bytes_.empty();
      stop = stop_;
    }
    if (stop && !have_output) return;
    const bool want_input = !stop && pending_input_.empty();
    pollfd fds[] = {{wake_.get(), POLLIN, 0},
                    {want_input ? input_ : -1, POLLIN, 0},
                    {have_output ? output_ : -1, POLLOUT, 0}};
    const int ready = poll(fds, std::size(fds), stop ? kLastOutputMilliseconds : -1);
    if (ready == 0) return;   // stopping, and nobody takes the rest
    if (ready < 0) continue;  // EINTR
    if (fds[0].revents) {
      eventfd_t count;
      eventfd_read(wake_.get(), &count);
    }
    if (fds[1].revents) read_some();
    if (!pending_input_.empty()) deliver_input();
    if (fds[2].revents && write_some()) port_->line_ready();
  }
}

// True if the port had been told that the line is full, and now there is room.
bool Console::write_some() {
  uint8_t chunk[kWriteSize];
  size_t size;
  {
    std::lock_guard lock(mutex_);
    size = std::min(sizeof chunk, output_bytes_.size());
    std::copy_n(output_bytes_.begin(), size, chunk);
  }
  const ssize_t written = ::write(output_, chunk, size);
  const int error = errno;
  if (written < 0 && (error == EINTR || error == EAGAIN)) return false;
  std::lock_guard lock(mutex_);
  if (written < 0) {
    fmt::print(stderr, "spindle: console output is lost from here on: {}\n",
               std::generic_category().message(error));
    output_ = -1;
    discard_ = true;
    output_bytes_.clear();
  } else {
    output_bytes_.erase(output_bytes_.begin(), output_bytes_.begin() + written);
  }
  if (!line_full_ || output_bytes_.size() > kOutputLimit / 2) return false;
  line_full_ = false;
  return true;
}

void Console::read_some() {
  uint8_t bytes[256];
  const ssize_t got = ::read(input_, bytes, sizeof bytes);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) {
    input_ = -1;  // the end of the input, or a terminal that hung up
    return;
  }
  for (ssize_t i = 0; i < got; ++i) {
    switch (keys_.feed(bytes[i], pending_input_)) {
      case ConsoleKeys::Action::None:
        break;
      case ConsoleKeys::Action::Quit:
        quit_();
        break;
      case ConsoleKeys::Action::Help: {
        std::lock_guard lock(mutex_);
        output_bytes_.insert(output_bytes_.end(), kHelp.begin(), kHelp.end());
        break;
      }
    }
  }
}

void Console::deliver_input() {
  input_waits_ = true;  // before the attempt, so that room made right after it is reported
  const size_t taken = port_->receive(pending_input_);
  pending_input_.erase(pending_input_.begin(), pending_input_.begin() + static_cast<ptrdiff_t>(taken));
  if (pending_input_.empty()) input_waits_ = false;
}

}  // namespace spindle::vmm
