#include "image/progress.h"

#include <fmt/format.h>
#include <signal.h>

#include <atomic>
#include <cstdio>

namespace spindle::image {
namespace {

std::atomic<bool> asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void ask(int) {
  asked.store(true, std::memory_order_relaxed);
}

constexpr double kStep = 1;  // per cent; more often is only noise

}  // namespace

Progress::Progress(bool shown) : shown_(shown) {
  struct sigaction action {};
  action.sa_handler = ask;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  if (shown_) print(0);
}

Progress::~Progress() {
  if (!shown_) return;
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

void Progress::print(double percent) {
  last_ = percent;
  fmt::print("    ({:.2f}/100%)\r", percent);
  std::fflush(stdout);
}

void Progress::set(uint64_t done, uint64_t total) {
  const double percent = total == 0 ? 100 : 100.0 * static_cast<double>(done) / static_cast<double>(total);
  if (shown_ && (percent >= last_ + kStep || (percent >= 100 && last_ < 100))) print(percent);
  if (asked.exchange(false, std::memory_order_relaxed)) {
    fmt::print(stderr, "    ({:.2f}/100%)\n", percent);
    std::fflush(stderr);
  }
}

}  // namespace spindle::image
