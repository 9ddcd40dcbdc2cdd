#include "vmm/signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <iterator>

#include "vmm/output.h"
#include "vmm/sandbox.h"
#include "vmm/terminal.h"

namespace spindle::vmm {
namespace {

// One wish may arrive as several signals: timeout(1), for one, signals its child and then its child's group.
// Who wants it a second time has had time to see that the first did not do.
constexpr std::chrono::milliseconds kSameWish{500};

}  // namespace

Result<std::unique_ptr<SignalWatcher>> SignalWatcher::create() {
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&set, number);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  Fd signals(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  Fd stop(eventfd(0, EFD_CLOEXEC));
  if (!signals || !stop) return std::unexpected(Error::from_errno(errno, "signalfd", ""));
  auto watcher = std::unique_ptr<SignalWatcher>(new SignalWatcher(std::move(signals), std::move(stop)));
  watcher->thread_ = std::thread([self = watcher.get()] {
    pthread_setname_np(pthread_self(), "signals");
    confine_or_end(ThreadRole::Signals);
    self->main();
  });
  return watcher;
}

SignalWatcher::~SignalWatcher() {
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void SignalWatcher::start(std::function<void(std::string)> on_end, std::function<void()> on_statistics) {
  std::lock_guard lock(mutex_);
  on_end_ = std::move(on_end);
  on_statistics_ = std::move(on_statistics);
}

// False if the process must end now.
bool SignalWatcher::tell(unsigned number, bool ending) {
  std::lock_guard lock(mutex_);
  if (number == SIGUSR1) {
    if (on_statistics_) on_statistics_();
    return true;
  }
  if (ending || !on_end_) return false;
  on_end_(std::string("SIG") + sigabbrev_np(static_cast<int>(number)));
  return true;
}

void SignalWatcher::main() {
  bool ending = false;
  std::chrono::steady_clock::time_point first;
  while (true) {
    pollfd fds[] = {{stop_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    if (poll(fds, std::size(fds), -1) < 0) continue;  // EINTR
    if (fds[0].revents) return;
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof info) != sizeof info) continue;
    const auto now = std::chrono::steady_clock::now();
    if (ending && info.ssi_signo != SIGUSR1 && now - first < kSameWish) continue;
    if (!tell(info.ssi_signo, ending)) {
      Terminal::restore();
      if (ending) say("spindle: ended at once by a second signal; the disks were not flushed");
      _exit(128 + static_cast<int>(info.ssi_signo));
    }
    if (!ending && info.ssi_signo != SIGUSR1) {
      ending = true;
      first = now;
    }
  }
}

}  // namespace spindle::vmm
