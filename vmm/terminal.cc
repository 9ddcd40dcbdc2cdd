#include "vmm/terminal.h"

#include <signal.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <iterator>

namespace spindle::vmm {
namespace {

// All whose default is to end the process, without those that signals.cc takes or that cannot be caught,
// SIGUSR2, which kicks vCPUs, and SIGSYS, by which the sandbox learns of what it does not allow. Signals for
// real-time use end it too; nobody sends these by accident.
constexpr int kFatalSignals[] = {SIGABRT, SIGSEGV, SIGBUS,  SIGILL,    SIGFPE,  SIGQUIT,   SIGTRAP,
                                 SIGALRM, SIGXCPU, SIGPROF, SIGVTALRM, SIGPOLL, SIGSTKFLT, SIGPWR};

// Written before the handlers are installed, only read by them.
termios saved;
int saved_fd = -1;
struct sigaction previous[std::size(kFatalSignals)];
std::atomic<bool> is_raw{false};

// Restores the terminal, then lets the signal do what it would have done without us.
void on_fatal_signal(int number) {
  Terminal::restore();
  for (size_t i = 0; i < std::size(kFatalSignals); ++i) {
    if (kFatalSignals[i] == number) sigaction(number, &previous[i], nullptr);
  }
  raise(number);
}

}  // namespace

void Terminal::make_raw(int fd) {
  if (!isatty(fd) || tcgetattr(fd, &saved) < 0) return;
  saved_fd = fd;
  atexit(restore);
  struct sigaction action {};
  action.sa_handler = on_fatal_signal;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(kFatalSignals); ++i) {
    sigaction(kFatalSignals[i], nullptr, &previous[i]);
    if (previous[i].sa_handler != SIG_IGN) sigaction(kFatalSignals[i], &action, nullptr);
  }
  termios raw = saved;
  raw.c_iflag &= ~static_cast<tcflag_t>(IGNBRK | BRKINT | PARMRK | ISTRIP | INLCR | IGNCR | ICRNL | IXON);
  raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ECHONL | ICANON | ISIG | IEXTEN);
  raw.c_cflag &= ~static_cast<tcflag_t>(CSIZE | PARENB);
  raw.c_cflag |= CS8;
  raw.c_oflag |= OPOST;  // our own messages end in a bare line feed
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  is_raw = true;
  tcsetattr(fd, TCSANOW, &raw);
}

void Terminal::restore() {
  if (!is_raw.exchange(false)) return;
  // From the background (stopped, then continued with bg), tcsetattr() would stop the process instead.
  sigset_t stop, before;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTTOU);
  pthread_sigmask(SIG_BLOCK, &stop, &before);
  tcsetattr(saved_fd, TCSANOW, &saved);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace spindle::vmm
