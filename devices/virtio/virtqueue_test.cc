#include <map>
#include <random>
#include <vector>

#include "devices/virtio/virtqueue_test_rig.h"

namespace spindle::virtio {
namespace {

using test::kMaxSize;
using test::Segment;
using test::TestQueue;
using test::TestRam;
using Rig = test::QueueRig<TestQueue>;

TEST_CASE("a chain comes out as it was described, directly, indirectly, and partly both") {
  Rig rig;
  const uint64_t a = rig.ram.allocate(16), b = rig.ram.allocate(512), c = rig.ram.allocate(1);
  const Segment segments[] = {{a, 16, false}, {b, 512, true}, {c, 1, true}};
  rig.driver.add(segments);
  rig.check_three_parts(a, b, c);
  const uint64_t table = rig.ram.allocate(64);
  rig.driver.add_indirect(segments, table);
  rig.check_three_parts(a, b, c);
}

TEST_CASE("empty buffers are skipped wherever they claim to lie") {
  Rig rig;
  const uint64_t a = rig.ram.allocate(16);
  const Segment segments[] = {{0, 0, false}, {a, 16, false}, {a, 1, true}, {~0ull, 0, true}};
  rig.driver.add(segments);
  REQUIRE(rig.pop() == Pop::Taken);
  CHECK(rig.chain.fault == ChainFault::None);
  CHECK(rig.chain.parts.size() == 2);
  CHECK(rig.chain.last_writable == rig.ram.at(a));
}

TEST_CASE("a chain with bad buffers comes out all the same, to fail alone") {
  const uint64_t end = TestRam().end(), inside = TestRam::kBase + 0x10000;
  struct Bad {
    const char* name;
    std::vector<Segment> segments;
    ChainFault fault;
    bool answerable = true;  // is there a byte to answer in?
  };
  const Bad all[] = {
      {"a buffer outside RAM with a good status",
       {{inside, 16, false}, {end, 512, true}, {inside, 1, true}},
       ChainFault::OutsideRam},
      {"a buffer that reaches beyond RAM",
       {{inside, 16, false}, {end - 511, 512, true}, {inside, 1, true}},
       ChainFault::OutsideRam},
      {"a buffer that wraps around",
       {{inside, 16, false}, {~0ull - 15, 512, true}, {inside, 1, true}},
       ChainFault::OutsideRam},
      {"a buffer as long as 32 bits can say",
       {{inside, 16, false}, {inside, ~0u, true}, {inside, 1, true}},
       ChainFault::OutsideRam},
      {"status outside RAM",
       {{inside, 16, false}, {inside, 512, true}, {end, 1, true}},
       ChainFault::OutsideRam,
       false},
      {"nothing writable", {{inside, 16, false}}, ChainFault::None, false},
      {"nothing at all", {{inside, 0, true}}, ChainFault::None, false},
      {"readable after writable",
       {{inside, 16, false}, {inside, 1, true}, {inside, 512, false}},
       ChainFault::ReadableAfterWritable},
  };
  for (const Bad& bad : all) {
    CAPTURE(bad.name);
    Rig rig;
    rig.driver.add(bad.segments);
    CHECK(rig.pop() == Pop::Taken);
    CHECK(rig.ring.broken_reason().empty());
    CHECK(rig.chain.fault == bad.fault);
    CHECK((rig.chain.last_writable != nullptr) == bad.answerable);
  }
}

TEST_CASE("a chain of more than 4 GiB is a fault, although its memory is there") {
  TestRam ram(64 << 20);
  TestQueue driver(ram, 8, false);
  Virtqueue ring;
  REQUIRE(ring.enable(driver.layout(), ram.memory(), {.indirect = true, .packed = test::kPackedRings},
                      kMaxSize, kMaxSize)
              .empty());
  const uint64_t table = ram.allocate(16 * 128);
  const std::vector<Segment> segments(128, {TestRam::kBase, 33 << 20, true});
  driver.add_indirect(segments, table);
  driver.publish();
  Chain chain;
  REQUIRE(ring.pop(chain) == Pop::Taken);
  CHECK(chain.fault == ChainFault::TooManyBytes);
}

TEST_CASE(
    "a chain of more descriptors than the device takes breaks the queue, be it in the ring or in a table") {
  constexpr uint32_t kMost = 4;
  for (bool indirect : {false, true}) {
    for (uint32_t length : {kMost, kMost + 1}) {
      CAPTURE(indirect);
      CAPTURE(length);
      TestRam ram;
      TestQueue driver(ram, 8, true);
      Virtqueue ring;
      const RingFeatures features{.indirect = true, .event_idx = true, .packed = test::kPackedRings};
      REQUIRE(ring.enable(driver.layout(), ram.memory(), features, kMaxSize, kMost).empty());
      const std::vector<Segment> segments(length, {ram.allocate(16), 16, true});
      if (indirect) {
        driver.add_indirect(segments, ram.allocate(16 * length));
      } else {
        driver.add(segments);
      }
      driver.publish();
      Chain chain;
      CHECK(ring.pop(chain) == (length == kMost ? Pop::Taken : Pop::Broken));
    }
  }
}

TEST_CASE("an indirect descriptor without the feature breaks the queue") {
  Rig rig(8, {.indirect = false, .event_idx = false});
  const Segment one[] = {{rig.ram.allocate(16), 16, true}};
  rig.driver.add_indirect(one, rig.ram.allocate(16));
  CHECK(rig.pop() == Pop::Broken);
}

// Packed queues have any size, split ones powers of two.
uint32_t next_size(uint32_t size) {
  return test::kPackedRings && size > 1 && size < 200 ? size + size / 2 + 1 : size * 2;
}

TEST_CASE("every size of queue wraps around its indices, with and without event idx") {
  for (bool event_idx : {false, true}) {
    for (uint32_t size = 1; size <= kMaxSize; size = next_size(size)) {
      CAPTURE(event_idx);
      CAPTURE(size);
      Rig rig(size, {.indirect = false, .event_idx = event_idx});
      const uint64_t a = rig.ram.allocate(16);
      const Segment one[] = {{a, 16, true}};
      std::mt19937 random(size);
      uint32_t expected = 0, lost = 0, wrong = 0, uninvited = 0;
      for (uint32_t total = 0; total < 70'000;) {
        const uint32_t batch = 1 + random() % size;
        for (uint32_t i = 0; i < batch; ++i) rig.driver.add(one);
        const auto threshold = static_cast<uint16_t>(1 + random() % batch);
        rig.driver.want_interrupt(threshold);
        // The device had run dry and asked for a notification, so it must be told.
        lost += !rig.driver.publish();
        uint32_t popped = 0;
        bool interrupted = false;
        while (rig.ring.pop(rig.chain) == Pop::Taken) {
          rig.ring.push(rig.chain.token, ++expected);
          const bool now = rig.ring.publish();
          ++popped;
          if (event_idx) uninvited += now && popped != threshold;
          interrupted |= now;
        }
        wrong += popped != batch;
        lost += !interrupted;
        wrong += rig.ring.enable_notifications();
        for (uint32_t i = expected - batch; i < expected; ++i) {
          const auto used = rig.driver.take();
          wrong += !used || used->length != i + 1;
        }
        total += batch;
      }
      CHECK(lost == 0);
      CHECK(wrong == 0);
      CHECK(uninvited == 0);
    }
  }
}

// Chains of random lengths, direct or indirect, are held by the device in random numbers and come back in
// random order. The model knows what each asked for.
TEST_CASE("random traffic comes out as it went in, and every notice that is due is given") {
  for (bool event_idx : {false, true}) {
    for (uint32_t size : {4u, 16u, 64u}) {
      CAPTURE(event_idx);
      CAPTURE(size);
      Rig rig(size, {.indirect = true, .event_idx = event_idx});
      struct Expected {
        std::vector<Segment> segments;
        uint32_t written = 0;
      };
      std::map<uint16_t, Expected> in_flight;  // by the driver's name for the chain
      struct Held {
        ChainToken token;
        uint32_t bytes = 0;
      };
      std::vector<Held> held;
      const uint64_t data = rig.ram.allocate(4096);
      const uint64_t table = rig.ram.allocate(16 * 8);
      std::mt19937 random(size + event_idx);
      const auto below = [&](uint32_t bound) { return static_cast<uint32_t>(random() % bound); };
      bool asleep = !rig.ring.enable_notifications();
      uint32_t waiting_for = 0, returned = 0;  // the driver sleeps until that many came back
      for (int step = 0; step < 20'000; ++step) {
        // The driver adds.
        bool added = false;
        for (uint32_t chains = below(4); chains > 0; --chains) {
          std::vector<Segment> segments;
          const uint32_t readable = below(3), writable = 1 + below(3);
          for (uint32_t i = 0; i < readable + writable; ++i)
            segments.push_back({data + below(2048), 1 + below(2048), i >= readable});
          const bool indirect = below(2) != 0;
          const auto name = indirect ? rig.driver.add_indirect(segments, table) : rig.driver.add(segments);
          if (!name) continue;
          REQUIRE(!in_flight.contains(*name));
          in_flight[*name] = {segments};
          added = true;
          if (indirect) break;  // the table is read when the chain is taken, below
        }
        if (added) {
          const bool notify = rig.driver.publish();
          REQUIRE((notify || !asleep));
          asleep = asleep && !notify;
        }
        // The device takes.
        for (;;) {
          const Pop result = rig.ring.pop(rig.chain);
          REQUIRE(result != Pop::Broken);
          if (result == Pop::Empty) {
            REQUIRE_FALSE(rig.ring.enable_notifications());
            asleep = true;
            break;
          }
          REQUIRE(in_flight.contains(rig.chain.token.id));
          const auto& segments = in_flight[rig.chain.token.id].segments;
          REQUIRE(rig.chain.parts.size() == segments.size());
          for (std::size_t i = 0; i < segments.size(); ++i) {
            REQUIRE(rig.chain.parts[i].iov_base == rig.ram.at(segments[i].address));
            REQUIRE(rig.chain.parts[i].iov_len == segments[i].length);
            REQUIRE((i >= rig.chain.readable_parts) == segments[i].writable);
          }
          held.push_back({rig.chain.token, static_cast<uint32_t>(random())});
        }
        REQUIRE(rig.ring.outstanding() == held.size());
        // It gives back some, the driver having asked for the next.
        if (waiting_for == 0 && !held.empty()) {
          rig.driver.want_interrupt();
          waiting_for = returned + 1;
        }
        const uint32_t before = returned;
        for (uint32_t i = below(static_cast<uint32_t>(held.size()) + 1); i > 0; --i) {
          std::swap(held[below(static_cast<uint32_t>(held.size()))], held.back());
          in_flight[held.back().token.id].written = held.back().bytes;
          rig.ring.push(held.back().token, held.back().bytes);
          held.pop_back();
          ++returned;
        }
        REQUIRE(rig.driver.used_waiting() == 0);  // unseen until publish
        const bool interrupt = rig.ring.publish();
        if (returned != before) {
          if (waiting_for != 0) REQUIRE(interrupt);
          waiting_for = 0;
        } else {
          REQUIRE_FALSE(interrupt);
        }
        REQUIRE(rig.driver.used_waiting() == returned - before);
        while (const auto used = rig.driver.take()) {
          const auto found = in_flight.find(static_cast<uint16_t>(used->id));
          REQUIRE(found != in_flight.end());
          REQUIRE(used->length == found->second.written);
          in_flight.erase(found);
        }
        REQUIRE(in_flight.size() == held.size());
      }
    }
  }
}

TEST_CASE("one decision about an interrupt is made for all that was pushed since the last") {
  Rig rig(8, {.event_idx = true});
  const uint64_t a = rig.ram.allocate(16);
  const Segment one[] = {{a, 16, true}};
  for (int i = 0; i < 4; ++i) rig.driver.add(one);
  rig.driver.want_interrupt(3);
  rig.driver.publish();
  for (int i = 0; i < 4; ++i) {
    REQUIRE(rig.ring.pop(rig.chain) == Pop::Taken);
    rig.ring.push(rig.chain.token, 0);
    CHECK_FALSE(rig.driver.take());  // nothing is shown before publish
  }
  CHECK(rig.ring.publish());
  CHECK(rig.driver.used_waiting() == 4);
  CHECK_FALSE(rig.ring.publish());
}

TEST_CASE("a driver that wants no interrupt gets none") {
  for (bool event_idx : {false, true}) {
    Rig rig(8, {.event_idx = event_idx});
    const uint64_t a = rig.ram.allocate(16);
    const Segment one[] = {{a, 16, true}};
    rig.driver.add(one);
    rig.driver.want_no_interrupt();
    REQUIRE(rig.pop() == Pop::Taken);
    rig.ring.push(rig.chain.token, 0);
    CHECK_FALSE(rig.ring.publish());
  }
}

TEST_CASE("asking for notifications tells of what came in the meantime") {
  for (bool event_idx : {false, true}) {
    Rig rig(8, {.event_idx = event_idx});
    const uint64_t a = rig.ram.allocate(16);
    const Segment one[] = {{a, 16, true}};
    rig.ring.suppress_notifications();
    CHECK(rig.ring.pop(rig.chain) == Pop::Empty);
    rig.driver.add(one);
    const bool told = rig.driver.publish();
    if (!event_idx) CHECK_FALSE(told);
    CHECK(rig.ring.enable_notifications());
    CHECK(rig.ring.pop(rig.chain) == Pop::Taken);
    CHECK_FALSE(rig.ring.enable_notifications());
    rig.driver.add(one);
    CHECK(rig.driver.publish());
  }
}

}  // namespace
}  // namespace spindle::virtio
