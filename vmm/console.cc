#include "vmm/console.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "vmm/output.h"
#include "vmm/sandbox.h"
#include "vmm/terminal.h"
#include "vmm/vcpu.h"

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
constexpr std::chrono::milliseconds kLastOutput{1000};
// After EAGAIN from a terminal that poll() calls writable: with room for one byte it takes no line feed,
// which needs two.
constexpr std::chrono::milliseconds kRetry{10};
// The thread that ends itself when nobody takes its output gets that much longer before it counts as hanging.
constexpr std::chrono::milliseconds kSlack{250};

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
  SPINDLE_TRY(Vcpu::install_kick_signal());  // stop() uses it
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return std::unexpected(Error::from_errno(errno, "eventfd", "the console"));
  Fd file;
  int input = -1, output = -1;
  switch (options.kind) {
    case ConsoleOptions::Kind::Stdio:
      input = STDIN_FILENO;
      file = open_nonblocking_terminal(STDOUT_FILENO);
      output = file ? file.get() : STDOUT_FILENO;
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
    confine_or_end(ThreadRole::Console);
    main();
    std::lock_guard lock(mutex_);
    finished_ = true;
    changed_.notify_all();
  });
}

void Console::stop() {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    stop_ = true;
    progress_ = std::chrono::steady_clock::now();
    wake();
    // The thread keeps the time itself, unless it hangs in a system call. A signal that comes just before the
    // call is lost, therefore more than one.
    while (!changed_.wait_until(lock, progress_ + kLastOutput + kSlack, [this] { return finished_; })) {
      if (std::chrono::steady_clock::now() < progress_ + kLastOutput + kSlack) continue;
      abandon_ = true;
      pthread_kill(thread_.native_handle(), Vcpu::kKickSignal);
      if (changed_.wait_for(lock, kRetry, [this] { return finished_; })) break;
    }
  }
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
  bool retry = false;  // the last write found no room in spite of poll()
  while (true) {
    bool have_output, stop;
    int timeout = -1;
    {
      std::lock_guard lock(mutex_);
      have_output = !output_bytes_.empty();
      stop = stop_;
      if (stop) {
        using std::chrono::milliseconds;
        const auto left =
            std::chrono::ceil<milliseconds>(progress_ + kLastOutput - std::chrono::steady_clock::now());
        if (!have_output || abandon_ || left <= milliseconds(0)) return;
        timeout = static_cast<int>(left.count());
      }
    }
    if (retry) timeout = static_cast<int>(kRetry.count());
    pollfd fds[] = {{wake_.get(), POLLIN, 0},
                    {stop ? -1 : input_, POLLIN, 0},
                    {have_output && !retry ? output_ : -1, POLLOUT, 0}};
    retry = false;
    if (poll(fds, std::size(fds), timeout) < 0) continue;  // EINTR
    if (fds[0].revents) {
      eventfd_t count;
      eventfd_read(wake_.get(), &count);
    }
    if (fds[1].revents) read_some();
    if (!pending_input_.empty()) deliver_input();
    if (fds[2].revents) retry = !write_some();
  }
}

// False if there was no room after all.
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
  if (written < 0 && error == EINTR) return true;
  if (written < 0 && error == EAGAIN) return false;
  bool room = false;
  {
    std::lock_guard lock(mutex_);
    if (written < 0) {
      output_ = -1;
      discard_ = true;
      output_bytes_.clear();
    } else {
      output_bytes_.erase(output_bytes_.begin(), output_bytes_.begin() + written);
      progress_ = std::chrono::steady_clock::now();
    }
    if (line_full_ && output_bytes_.size() <= kOutputLimit / 2) {
      line_full_ = false;
      room = true;
    }
  }
  if (written < 0) {
    say("spindle: console output is lost from here on: " + std::generic_category().message(error));
  }
  if (room) port_->line_ready();
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
      case ConsoleKeys::Action::Help:
        help();
        break;
    }
  }
  if (pending_input_.size() > kInputLimit) pending_input_.resize(kInputLimit);
}

void Console::help() {
  {
    std::lock_guard lock(mutex_);
    if (!discard_) {
      if (output_bytes_.size() < kOutputLimit)
        output_bytes_.insert(output_bytes_.end(), kHelp.begin(), kHelp.end());
      return;
    }
  }
  say(kHelp);
}

void Console::deliver_input() {
  input_waits_ = true;  // before the attempt, so that room made right after it is reported
  const size_t taken = port_->receive(pending_input_);
  pending_input_.erase(pending_input_.begin(), pending_input_.begin() + static_cast<ptrdiff_t>(taken));
  if (pending_input_.empty()) input_waits_ = false;
}

}  // namespace spindle::vmm
