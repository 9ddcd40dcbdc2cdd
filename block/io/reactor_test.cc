#include "block/io/reactor.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace spindle {
namespace {

Task<int> value_of(int value) {
  co_return value;
}

Task<int> add_up(int count) {
  int sum = 0;
  for (int i = 0; i < count; ++i) sum += co_await value_of(1);
  co_return sum;
}

Task<int> add_up_suspending(Reactor& reactor, int count) {
  int sum = 0;
  for (int i = 0; i < count; ++i) {
    co_await reactor.yield();
    sum += co_await value_of(1);
  }
  co_return sum;
}

TEST_CASE("a task that awaits a million others which finish at once needs no stack") {
  auto reactor = Reactor::create();
  REQUIRE(reactor);
  CHECK((*reactor)->wait(add_up(1'000'000)) == 1'000'000);
}

TEST_CASE("tasks that suspend are resumed where they stopped") {
  auto reactor = Reactor::create();
  REQUIRE(reactor);
  CHECK((*reactor)->wait(add_up_suspending(**reactor, 10'000)) == 10'000);
}

TEST_CASE("operations on the ring return their result, or -errno") {
  auto reactor = Reactor::create();
  REQUIRE(reactor);
  auto both = [](Reactor& r) -> Task<std::pair<int, int>> {
    const int good = co_await r.submit([](io_uring_sqe* sqe) { io_uring_prep_nop(sqe); });
    const int bad = co_await r.submit([](io_uring_sqe* sqe) { io_uring_prep_fsync(sqe, -1, 0); });
    co_return std::pair(good, bad);
  };
  CHECK((*reactor)->wait(both(**reactor)) == std::pair(0, -EBADF));
}

TEST_CASE("more operations at once than the submission queue holds all complete") {
  auto reactor = Reactor::create(8);
  REQUIRE(reactor);
  int completed = 0;
  for (int i = 0; i < 1000; ++i) {
    spawn(
        [](Reactor& r) -> Task<int> {
          co_return co_await r.submit([](io_uring_sqe* sqe) { io_uring_prep_nop(sqe); });
        }(**reactor),
        [&](int result) { completed += result == 0; });
  }
  (*reactor)->run_until([&] { return completed == 1000; });
  CHECK((*reactor)->operations_in_flight() == 1);  // the wake-up watch
}

TEST_CASE("work posted from many threads runs once each, in each thread's order") {
  auto thread = ReactorThread::start("test");
  REQUIRE(thread);
  constexpr int kThreads = 4, kEach = 5000;
  std::vector<int> last(kThreads, -1);
  int ran = 0;
  bool ordered = true;
  {
    std::vector<std::jthread> posters;
    for (int t = 0; t < kThreads; ++t) {
      posters.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) {
          (*thread)->reactor().post([&, t, i] {
            ordered &= last[t] == i - 1;
            last[t] = i;
            ++ran;
          });
        }
      });
    }
  }
  const bool all = (*thread)->call([&]() -> Task<bool> { co_return ran == kThreads* kEach&& ordered; });
  CHECK(all);
}

TEST_CASE("a watched eventfd calls its handler for each signal until it is no longer watched") {
  auto reactor = Reactor::create();
  REQUIRE(reactor);
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  int calls = 0;
  (*reactor)->watch(fd, [&] { ++calls; });
  const uint64_t one = 1;
  for (int i = 1; i <= 3; ++i) {
    REQUIRE(write(fd, &one, sizeof one) == sizeof one);
    (*reactor)->run_until([&] { return calls == i; });
  }
  (*reactor)->unwatch(fd);
  REQUIRE(write(fd, &one, sizeof one) == sizeof one);
  (*reactor)->run_until([&] { return (*reactor)->operations_in_flight() == 1; });
  CHECK(calls == 3);
  close(fd);
}

TEST_CASE("frames freed on a thread that makes none end with it") {
  constexpr size_t kFrames = 10'000, kBytes = 500;
  const auto heap = [] { return mallinfo2().uordblks; };
  std::vector<void*> frames;
  frames.reserve(kFrames);
  const size_t before = heap();
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < kFrames; ++i) frames.push_back(FramePool::allocate(kBytes));
    std::thread([&frames] {
      for (void* frame : frames) FramePool::release(frame, kBytes);
    }).join();
    frames.clear();
  }
  CHECK(heap() < before + kFrames * kBytes / 2);
}

TEST_CASE("sleep is never early") {
  auto reactor = Reactor::create();
  REQUIRE(reactor);
  const auto start = std::chrono::steady_clock::now();
  (*reactor)->wait((*reactor)->sleep(std::chrono::milliseconds(5)));
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(5));
}

TEST_CASE("a registered file is used by its slot, and slots run out without harm") {
  auto reactor = Reactor::create();
  REQUIRE(reactor);
  const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  std::vector<int> slots;
  for (int slot = (*reactor)->register_file(fd); slot >= 0; slot = (*reactor)->register_file(fd))
    slots.push_back(slot);
  REQUIRE_FALSE(slots.empty());
  close(fd);
  char magic[4] = {};
  auto read_by_slot = [&](Reactor& r, int slot) -> Task<int> {
    co_return co_await r.submit([&](io_uring_sqe* sqe) {
      io_uring_prep_read(sqe, slot, magic, sizeof magic, 0);
      sqe->flags |= IOSQE_FIXED_FILE;
    });
  };
  CHECK((*reactor)->wait(read_by_slot(**reactor, slots.back())) == 4);
  CHECK(magic[1] == 'E');
  (*reactor)->unregister_file(slots.back());
  CHECK((*reactor)->wait(read_by_slot(**reactor, slots.back())) == -EBADF);
}

struct CountingHook final : Reactor::BatchHook {
  int calls = 0;
  void end_of_batch() override { ++calls; }
};

TEST_CASE("a batch hook runs once a batch however often it was armed, and not when disarmed") {
  auto reactor = Reactor::create();
  REQUIRE(reactor);
  CountingHook hook, forgotten;
  (*reactor)->arm(hook);
  (*reactor)->arm(hook);
  (*reactor)->arm(forgotten);
  (*reactor)->disarm(forgotten);
  (*reactor)->run_until([&] { return hook.calls > 0; });
  CHECK(hook.calls == 1);
  CHECK(forgotten.calls == 0);
}

}  // namespace
}  // namespace spindle
