#include "vmm/signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>

#include "vmm/terminal.h"

namespace spindle::vmm {

Result<std::unique_ptr<SignalWatcher>> SignalWatcher::create() {
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&set, number);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  Fd signals(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  Fd stop(eventfd(0, EFD_CLOEXEC));
  if (!signals || !stop) return std::unexpected(Error::from_errno(errno, "signalfd", ""));
  return std::unique_ptr<SignalWatcher>(new SignalWatcher(std::move(signals), std::move(stop)));
}

SignalWatcher::~SignalWatcher() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void SignalWatcher::start(std::function<void(std::string)> on_end, std::function<void()> on_statistics) {
  on_end_ = std::move(on_end);
  on_statistics_ = std::move(on_statistics);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "signals");
    main();
  });
}

void SignalWatcher::main() {
  bool ending = false;
  while (true) {
    pollfd fds[] = {{stop_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    if (poll(fds, std::size(fds), -1) < 0) continue;  // EINTR
    if (fds[0].revents) return;
    signalfd_siginfo info;
    if (read(signals_.get(), &info, sizeof info) != sizeof info) continue;
    if (info.ssi_signo == SIGUSR1) {
      on_statistics_();
    } else if (!ending) {
      ending = true;
      on_end_(std::string("SIG") + sigabbrev_np(static_cast<int>(info.ssi_signo)));
    } else {
      Terminal::restore();
      _exit(128 + static_cast<int>(info.ssi_signo));
    }
  }
}

}  // namespace spindle::vmm
