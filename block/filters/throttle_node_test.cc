// Throttling on a clock that the test turns on: nothing here depends on how fast the machine is.
#include "block/filters/throttle_node.h"

#include <doctest/doctest.h>

#include <optional>
#include <vector>

#include "block/disk.h"
#include "block/filters/null_node.h"
#include "block/test_support/held_node.h"

namespace spindle {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

class TestClock final : public ThrottleClock {
 public:
  nanoseconds now() const override { return now_; }
  void set_alarm(nanoseconds when) override { alarm_ = when; }
  void clear_alarm() override { alarm_.reset(); }

  bool alarm_set() const { return alarm_.has_value(); }
  /// Goes on to the next alarm and rings, if there is one until `end`; else to `end`.
  bool advance(nanoseconds end) {
    if (!alarm_ || *alarm_ > end) {
      now_ = end;
      return false;
    }
    now_ = std::max(now_, *alarm_);
    alarm_.reset();
    ring();
    return true;
  }

 private:
  nanoseconds now_{1};
  std::optional<nanoseconds> alarm_;
};

ThrottleLimits limits(std::initializer_list<std::pair<ThrottleKind, ThrottleRate>> rates) {
  ThrottleLimits result;
  for (const auto& [kind, rate] : rates) result.rates[static_cast<std::size_t>(kind)] = rate;
  REQUIRE(check_throttle_limits(result, ThrottleSpelling::Qmp).has_value());
  return result;
}

struct Bench {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create());
  std::shared_ptr<NullNode> null =
      std::make_shared<NullNode>(*reactor, NullNode::Options{.size = 1 << 30, .read_zeroes = false});
  TestClock* clock;
  std::shared_ptr<ThrottleNode> node;
  std::vector<uint8_t> memory = std::vector<uint8_t>(1 << 20);
  std::vector<iovec> parts;
  std::vector<int> done;  // the numbers that requests were given, as they ended
  bool stopped = false;
  unsigned running = 0;
  uint64_t reads = 0, writes = 0;

  explicit Bench(const ThrottleLimits& given) {
    auto made = std::make_unique<TestClock>();
    clock = made.get();
    node = std::make_shared<ThrottleNode>(null, given, std::move(made));
  }
  ~Bench() { finish(); }

  Buffers buffers(iovec& part, std::size_t length) {
    part = {memory.data(), length};
    return Buffers(std::span(&part, 1));
  }
  /// Until nothing more ends without time passing.
  void settle() {
    uint64_t before;
    do {
      before = reads + writes + done.size();
      test::settle(*reactor);
    } while (reads + writes + done.size() != before);
  }
  void run(nanoseconds duration) {
    const nanoseconds end = clock->now() + duration;
    do settle();
    while (clock->advance(end));
  }
  /// A guest that always has one more request to make.
  Detached worker(ThrottleDirection direction, std::size_t length) {
    ++running;
    iovec part;
    const Buffers data = buffers(part, length);
    while (!stopped) {
      co_await reactor->yield();
      const bool reading = direction == ThrottleDirection::Read;
      auto operation = reading ? node->read(0, data) : node->write(0, data, {});
      const auto result = co_await operation;
      CHECK(result.has_value());
      if (!stopped) ++(reading ? reads : writes);
    }
    --running;
  }
  /// One request, `number` of which is noted when it has ended.
  Detached request(ThrottleDirection direction, int number, std::size_t length = 512) {
    ++running;
    iovec part;
    const Buffers data = buffers(part, length);
    auto operation = direction == ThrottleDirection::Read ? node->read(0, data) : node->write(0, data, {});
    const auto result = co_await operation;
    CHECK(result.has_value());
    done.push_back(number);
    --running;
  }
  void finish() {
    stopped = true;
    const DrainSection drained(*node);
    reactor->run_until([this] { return running == 0; });
  }
};

constexpr auto kRead = ThrottleDirection::Read;
constexpr auto kWrite = ThrottleDirection::Write;

bool near(uint64_t value, uint64_t expected, uint64_t tolerance = 1) {
  return value + tolerance >= expected && value <= expected + tolerance;
}

TEST_CASE("throttle: over a long time a rate is exact to one request") {
  // QEMU's brim without a burst: a tenth of a second's worth passes at once, and one more.
  for (const uint64_t rate : {1u, 7u, 100u, 333u}) {
    Bench bench(limits({{ThrottleKind::IopsTotal, {.average = rate}}}));
    bench.worker(kRead, 512);
    bench.worker(kRead, 4096);
    bench.run(seconds(600));
    CHECK_MESSAGE(near(bench.reads, rate * 600 + rate / 10 + 1), rate << ": " << bench.reads);
  }
  Bench bench(limits({{ThrottleKind::BpsWrite, {.average = 1'000'000}}}));
  bench.worker(kWrite, 4096);
  bench.run(seconds(3600));
  CHECK(near(bench.writes, (3'600'000'000ull + 100'000) / 4096 + 1));
  bench.request(kRead, 1);
  CHECK(bench.done == std::vector{1});  // reads are not limited: they go at once
}

TEST_CASE("throttle: reads and writes of their own rates do not wait for each other") {
  Bench bench(
      limits({{ThrottleKind::IopsRead, {.average = 10}}, {ThrottleKind::IopsWrite, {.average = 1000}}}));
  bench.worker(kRead, 512);
  bench.worker(kWrite, 512);
  bench.run(seconds(100));
  CHECK(near(bench.reads, 1000 + 2));
  CHECK(near(bench.writes, 100'000 + 101));
}

TEST_CASE("throttle: under a total, reads and writes take turns, however many of one there are") {
  Bench bench(limits({{ThrottleKind::IopsTotal, {.average = 100}}}));
  for (int i = 0; i < 8; ++i) bench.worker(kWrite, 512);
  bench.run(seconds(1));  // the burst is over
  bench.worker(kRead, 512);
  bench.worker(kRead, 512);
  const uint64_t before = bench.writes;
  bench.run(seconds(100));
  CHECK(near(bench.reads, 5000, 2));
  CHECK(near(bench.writes - before, 5000, 2));
}

TEST_CASE("throttle: a burst lasts its length at its rate, then comes the average") {
  Bench bench(limits({{ThrottleKind::IopsTotal, {.average = 100, .max = 1000, .max_length = 10}}}));
  bench.worker(kRead, 512);
  bench.worker(kRead, 512);
  bench.run(seconds(5));
  CHECK(near(bench.reads, 5000 + 101));  // the burst's own brim is a tenth of a second
  // 10000 units fit, and 100 a second leak: the bucket is full after 10000 / 900 seconds at 1000.
  bench.run(seconds(95));
  CHECK(near(bench.reads, 10'000 + 100 * 100 + 1));
  const uint64_t before = bench.reads;
  bench.run(seconds(100));
  CHECK(near(bench.reads - before, 10'000));
}

TEST_CASE("throttle: with a burst of a second, that many pass at once") {
  Bench bench(limits({{ThrottleKind::IopsTotal, {.average = 10, .max = 50}}}));
  for (int i = 0; i < 100; ++i) bench.request(kWrite, i);
  bench.settle();
  CHECK(bench.done.size() == 51);
  bench.run(seconds(2));
  CHECK(bench.done.size() == 71);
}

TEST_CASE("throttle: large requests count as several operations with iops-size") {
  auto given = limits({{ThrottleKind::IopsTotal, {.average = 100}}});
  given.iops_size = 4096;
  Bench bench(given);
  bench.worker(kRead, 16384);
  bench.run(seconds(100));
  CHECK(near(bench.reads, (10'000 + 10) / 4 + 1));
}

TEST_CASE("throttle: requests of a direction go in their order, also when a drain lets them go") {
  Bench bench(limits({{ThrottleKind::IopsTotal, {.average = 1}}}));
  for (int i = 0; i < 4; ++i) bench.request(kWrite, i);
  bench.settle();
  CHECK(bench.done == std::vector{0});
  bench.run(seconds(1));
  CHECK(bench.done == std::vector{0, 1});
  {
    const DrainSection outer(*bench.node);
    { const DrainSection inner(*bench.node); }
    bench.request(kWrite, 4);  // while the others are let go
    bench.settle();
    CHECK(bench.done == std::vector{0, 1, 2, 3, 4});
    CHECK(!bench.clock->alarm_set());
    bench.request(kWrite, 5);
    CHECK(bench.done.back() == 5);
  }
  // What passed during the drain was counted: four of it are paid for now.
  bench.request(kWrite, 6);
  bench.run(seconds(3));
  CHECK(bench.done.back() == 5);
  bench.run(seconds(2));
  CHECK(bench.done.back() == 6);
}

TEST_CASE("throttle: new limits hold for those that wait") {
  Bench bench(limits({{ThrottleKind::IopsTotal, {.average = 1}}}));
  for (int i = 0; i < 10; ++i) bench.request(i % 2 == 0 ? kRead : kWrite, i);
  bench.settle();
  CHECK(bench.node->waiting() == 9);
  bench.node->set_limits(limits({{ThrottleKind::IopsTotal, {.average = 40}}}));
  bench.settle();
  CHECK(bench.done.size() == 1 + 5);  // a new brim of four, and one
  bench.run(nanoseconds(25'000'000));
  CHECK(bench.done.size() == 7);
  bench.node->set_limits({});
  bench.request(kWrite, 99);  // does not overtake those that are about to go
  bench.settle();
  CHECK(bench.done.size() == 11);
  CHECK(bench.done.back() == 99);
  CHECK(!bench.clock->alarm_set());
  bench.request(kRead, 100);
  CHECK(bench.done.back() == 100);
}

TEST_CASE("throttle: flushes and discards never wait; zeroes are writes of their length") {
  Bench bench(limits({{ThrottleKind::BpsWrite, {.average = 1000}}}));
  bench.request(kWrite, 0, 5000);
  bench.request(kWrite, 1, 512);
  bench.settle();
  CHECK(bench.node->waiting() == 1);
  CHECK(bench.reactor->wait(bench.node->flush()).has_value());
  CHECK(bench.reactor->wait(bench.node->discard(0, 1 << 20)).has_value());
  bool zeroed = false;
  spawn(bench.node->write_zeroes(0, 100'000, {}), [&](const Result<>&) { zeroed = true; });
  bench.run(seconds(5));
  CHECK(bench.done == std::vector{0, 1});
  CHECK(!zeroed);
  bench.run(seconds(1));
  CHECK(zeroed);
  bench.request(kWrite, 2);
  bench.run(seconds(99));
  CHECK(bench.done.size() == 2);
  bench.run(seconds(2));
  CHECK(bench.done.size() == 3);
}

TEST_CASE("throttle: a disk drains and closes without waiting for its limits") {
  Bench bench(limits({{ThrottleKind::IopsTotal, {.average = 1}}}));
  Disk disk(bench.node, {.id = "slow"});
  iovec part;
  const Buffers data = bench.buffers(part, 512);
  unsigned ended = 0;
  const auto write_ten = [&] {
    for (int i = 0; i < 10; ++i) spawn(disk.write(0, data), [&](const Result<>&) { ++ended; });
  };
  write_ten();
  bench.settle();
  CHECK(ended == 1);
  bench.reactor->wait(disk.drain());
  CHECK(ended == 10);
  write_ten();
  bench.settle();
  CHECK(ended == 10);  // limits are back
  CHECK(bench.reactor->wait(disk.close()).has_value());
  CHECK(ended == 20);
  CHECK(!bench.clock->alarm_set());
}

TEST_CASE("throttle: a range is refused by the child, after its turn") {
  Bench bench(limits({{ThrottleKind::IopsTotal, {.average = 1000}}}));
  iovec part;
  const Buffers data = bench.buffers(part, 512);
  CHECK(bench.reactor->wait(bench.node->read(bench.null->size(), data)).error()->kind == ErrorKind::Invalid);
}

TEST_CASE("throttle: with the monotonic clock requests wait and go, and an alarm left behind harms nobody") {
  auto reactor = std::move(*Reactor::create());
  auto null = std::make_shared<NullNode>(*reactor, NullNode::Options{.read_zeroes = false});
  auto node = std::make_shared<ThrottleNode>(null, limits({{ThrottleKind::IopsTotal, {.average = 1000}}}));
  char byte = 0;
  const iovec part{&byte, 1};
  unsigned ended = 0;
  const auto read_many = [&](unsigned count) {
    for (unsigned i = 0; i < count; ++i)
      spawn(node->read(0, Buffers(std::span(&part, 1))), [&](const Result<>&) { ++ended; });
  };
  const auto start = std::chrono::steady_clock::now();
  read_many(121);
  CHECK(node->waiting() > 0);
  reactor->run_until([&] { return ended == 121; });
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(20));
  node->set_limits(limits({{ThrottleKind::IopsTotal, {.average = 1, .max = 1, .max_length = 1}}}));
  read_many(4);
  CHECK(node->waiting() > 0);
  node->set_limits({});
  reactor->run_until([&] { return ended == 125; });
  CHECK(reactor->wait(node->close()).has_value());
}

}  // namespace
}  // namespace spindle
