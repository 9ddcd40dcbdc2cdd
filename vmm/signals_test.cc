// SignalWatcher in a process of its own, since what it does in the end is to end it.
#include "vmm/signals.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <string>

namespace spindle::vmm {
namespace {

constexpr int kPatienceMilliseconds = 20'000;

class Watched {
 public:
  /// `hangs`: once told to end it never gets done.
  explicit Watched(bool hangs) {
    std::array<int, 2> said{}, hold{};
    REQUIRE(pipe(said.data()) == 0);
    REQUIRE(pipe(hold.data()) == 0);
    child_ = fork();
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      close(hold[1]);  // the read below ends when the test goes
      run(said[1], hold[0], hangs);
    }
    close(said[1]);
    close(hold[0]);
    said_ = Fd(said[0]);
    hold_ = Fd(hold[1]);
    CHECK(hear() == 'r');
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  ~Watched() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
  }

  void signal(int number) const { REQUIRE(kill(child_, number) == 0); }
  /// What it said next; 0 once it has ended.
  char hear(int milliseconds = kPatienceMilliseconds) const {
    pollfd readable{said_.get(), POLLIN, 0};
    char said = 0;
    if (poll(&readable, 1, milliseconds) != 1) return '-';
    return read(said_.get(), &said, 1) == 1 ? said : '\0';
  }
  void let_end() { hold_ = Fd(); }
  int status() {
    int status = 0;
    REQUIRE(waitpid(child_, &status, 0) == child_);
    child_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  [[noreturn]] static void run(int said, int hold, bool hangs) {
    signal_default();
    auto watcher = SignalWatcher::create();
    if (!watcher) _exit(99);
    const auto say = [said](char what) {
      if (write(said, &what, 1) != 1) _exit(98);
    };
    std::atomic<bool> ending = false;
    (*watcher)->start(
        [&](const std::string& name) {
          say(name == "SIGTERM" ? 'T' : 'o');
          ending = true;
          ending.notify_all();
        },
        [&] { say('s'); });
    say('r');
    ending.wait(false);
    char end = 0;
    if (hangs) pause();
    (void)!read(hold, &end, 1);
    watcher->reset();
    _exit(0);
  }
  static void signal_default() {
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) std::signal(number, SIG_DFL);
  }

  pid_t child_ = 0;
  Fd said_, hold_;
};

}  // namespace

TEST_CASE("signals: the first asks to end in order, and others with it mean no more than that") {
  Watched process(false);
  process.signal(SIGUSR1);
  CHECK(process.hear() == 's');
  process.signal(SIGTERM);
  process.signal(SIGINT);
  process.signal(SIGHUP);
  const char first = process.hear();  // of those that wait the kernel hands out the lowest number
  CHECK((first == 'T' || first == 'o'));
  process.signal(SIGUSR1);
  CHECK(process.hear() == 's');
  process.let_end();
  CHECK(process.status() == 0);
}

TEST_CASE("signals: another one later ends what hangs, at once and with its number") {
  Watched process(true);
  process.signal(SIGTERM);
  CHECK(process.hear() == 'T');
  // Asked again until it obeys: the first half second does not count as another wish.
  char said = '-';
  for (int i = 0; i < 400 && said == '-'; ++i) {
    process.signal(SIGINT);
    said = process.hear(50);
  }
  CHECK(said == '\0');
  CHECK(process.status() == 128 + SIGINT);
}

}  // namespace spindle::vmm
