#include <functional>
#include <vector>

#include "devices/virtio/virtqueue_test_rig.h"

namespace spindle::virtio {
namespace {

using test::kMaxSize;
using test::PackedTestQueue;
using test::Segment;
using test::TestRam;
using Rig = test::QueueRig<PackedTestQueue>;

const uint64_t kEnd = TestRam().end();
constexpr uint64_t kInside = TestRam::kBase + 0x10000;

struct Malformed {
  const char* name;
  std::function<void(Rig&)> make;
};

void offer(Rig& rig, std::vector<PackedDescriptor> descriptors) {
  for (const PackedDescriptor& descriptor : descriptors) rig.driver.offer(descriptor);
}
// Offers `reference`, whose address counts from a table of `entries` good descriptors.
void offer_table(Rig& rig, PackedDescriptor reference, uint32_t entries = 2) {
  const uint64_t table = rig.ram.allocate(16 * entries);
  for (uint32_t i = 0; i < entries; ++i)
    rig.ram.at<PackedDescriptor>(table)[i] = {kInside, 16, 0, i == 0 ? uint16_t{0} : kDescWrite};
  reference.address += table;
  rig.driver.offer(reference);
}

const std::vector<Malformed>& malformed_chains() {
  static const std::vector<Malformed> all = {
      {"a chain without an end",
       [](Rig& rig) {
         for (int i = 0; i < 8; ++i) offer(rig, {{kInside, 1, 0, kDescNext}});
       }},
      {"a chain that reaches into one that is out",
       [](Rig& rig) {
         const Segment three[] = {{kInside, 1, true}, {kInside, 1, true}, {kInside, 1, true}};
         rig.driver.add(three);
         REQUIRE(rig.pop() == Pop::Taken);
         for (int i = 0; i < 6; ++i) offer(rig, {{kInside, 1, 1, i < 5 ? kDescNext : uint16_t{0}}});
       }},
      {"more chains than the queue has descriptors",
       [](Rig& rig) {
         for (uint16_t i = 0; i < 8; ++i) offer(rig, {{kInside, 1, i, kDescWrite}});
         rig.driver.publish();
         for (int i = 0; i < 8; ++i) REQUIRE(rig.ring.pop(rig.chain) == Pop::Taken);
         offer(rig, {{kInside, 1, 0, kDescWrite}});
       }},
      {"an indirect table in a chain",
       [](Rig& rig) {
         offer(rig, {{kInside, 16, 0, kDescNext}});
         offer_table(rig, {0, 32, 0, kDescIndirect});
       }},
      {"indirect with next",
       [](Rig& rig) {
         offer_table(rig, {0, 32, 0, kDescIndirect | kDescNext});
         offer(rig, {{kInside, 16, 0, kDescWrite}});
       }},
      {"indirect table of no entries",
       [](Rig& rig) {
         offer_table(rig, {0, 0, 0, kDescIndirect});
       }},
      {"indirect table of a broken number of entries",
       [](Rig& rig) {
         offer_table(rig, {0, 33, 0, kDescIndirect}, 3);
       }},
      {"indirect table outside RAM",
       [](Rig& rig) {
         offer(rig, {{kEnd - 16, 32, 0, kDescIndirect}});
       }},
      {"indirect table that wraps around",
       [](Rig& rig) {
         offer(rig, {{~0ull - 15, 32, 0, kDescIndirect}});
       }},
      {"indirect table longer than any chain",
       [](Rig& rig) {
         offer_table(rig, {0, 16 * (kMaxSize + 1), 0, kDescIndirect}, kMaxSize + 1);
       }},
      {"indirect table as long as 32 bits can say",
       [](Rig& rig) {
         offer(rig, {{kInside, ~15u, 0, kDescIndirect}});
       }},
  };
  return all;
}

TEST_CASE("chains that cannot be followed break the queue until it is enabled anew") {
  for (const Malformed& test : malformed_chains()) {
    CAPTURE(test.name);
    Rig rig;
    test.make(rig);
    rig.check_broken();
  }
}

TEST_CASE("an id that no chain can have is the driver's business") {
  Rig rig;
  offer(rig, {{kInside, 1, 0xffff, kDescWrite}});
  REQUIRE(rig.pop() == Pop::Taken);
  CHECK(rig.chain.token.id == 0xffff);
  CHECK(rig.chain.fault == ChainFault::None);
}

TEST_CASE("2.8.7: in an indirect table only WRITE means something: neither NEXT nor INDIRECT nor the id") {
  Rig rig;
  const uint64_t table = rig.ram.allocate(48);
  auto* entries = rig.ram.at<PackedDescriptor>(table);
  entries[0] = {kInside, 16, 7, kDescIndirect};
  entries[1] = {kInside + 16, 32, 9, kDescWrite | kDescIndirect | kPackedDescUsed};
  entries[2] = {kInside + 48, 1, 11, kDescWrite | kDescNext};
  rig.driver.offer({table, 48, 5, kDescIndirect | kDescWrite});
  REQUIRE(rig.pop() == Pop::Taken);
  CHECK(rig.chain.token.id == 5);
  CHECK(rig.chain.token.descriptors == 1);
  CHECK(rig.chain.readable_bytes == 16);
  CHECK(rig.chain.writable_bytes == 33);
}

TEST_CASE("the buffer id is the last descriptor's, and a chain goes on at the ring's front") {
  Rig rig(5);
  const Segment three[] = {{kInside, 16, false}, {kInside, 512, true}, {kInside, 1, true}};
  for (int round = 0; round < 20; ++round) {  // 3 of 5: begins everywhere
    const auto id = rig.driver.add(three);
    REQUIRE(id);
    REQUIRE(rig.pop() == Pop::Taken);
    CHECK(rig.chain.token.id == *id);
    CHECK(rig.chain.token.descriptors == 3);
    CHECK(rig.chain.parts.size() == 3);
    CHECK(rig.ring.pop(rig.chain) == Pop::Empty);
    rig.ring.push(rig.chain.token, 513);
    CHECK_FALSE(rig.driver.take());
    rig.ring.publish();
    const auto used = rig.driver.take();
    REQUIRE(used);
    CHECK(used->id == *id);
    CHECK(used->length == 513);
  }
}

TEST_CASE("2.8.4: WRITE in a used descriptor says whether something was written") {
  for (uint32_t written : {0u, 1u}) {
    Rig rig;
    const Segment one[] = {{kInside, 16, true}};
    rig.driver.add(one);
    REQUIRE(rig.pop() == Pop::Taken);
    rig.ring.push(rig.chain.token, written);
    rig.ring.publish();
    CHECK(rig.driver.descriptor(0).flags ==
          (kPackedDescAvail | kPackedDescUsed | (written ? kDescWrite : 0)));
  }
}

TEST_CASE("the guest may change a descriptor after it was taken") {
  Rig rig;
  const Segment one[] = {{kInside, 512, true}};
  const auto id = rig.driver.add(one);
  REQUIRE(rig.pop() == Pop::Taken);
  rig.driver.descriptor(0) = {~0ull, ~0u, 0xffff, kDescIndirect};
  CHECK(rig.chain.parts[0].iov_len == 512);
  CHECK(rig.chain.parts[0].iov_base == rig.ram.at(kInside));
  CHECK(rig.chain.token.id == *id);
}

TEST_CASE("event positions that no ring has, and flags that nobody knows, do no harm") {
  Rig rig;
  const Segment one[] = {{kInside, 16, true}};
  // Reserved flags count as "always", and so does a position where the feature was not acknowledged.
  const auto interrupts = [&](Rig& on, uint32_t event) {
    on.driver.add(one);
    REQUIRE(on.pop() == Pop::Taken);
    on.ring.push(on.chain.token, 1);
    on.driver.set_driver_event(event);
    const bool result = on.ring.publish();
    REQUIRE(on.driver.take());
    return result;
  };
  CHECK(interrupts(rig, 3u << 16));
  CHECK(interrupts(rig, 0xfffcu << 16));
  CHECK_FALSE(interrupts(rig, 0xfffdu << 16));
  CHECK_FALSE(interrupts(rig, uint32_t{kPackedEventDesc} << 16 | 0x7fff));
  CHECK_FALSE(interrupts(rig, uint32_t{kPackedEventDesc} << 16 | 0xffff));
  Rig without(8, {.event_idx = false});
  CHECK(interrupts(without, uint32_t{kPackedEventDesc} << 16 | 0x7fff));
}

TEST_CASE("the device says in its event area when it wants to be notified") {
  Rig rig;
  CHECK_FALSE(rig.ring.enable_notifications());
  CHECK(rig.driver.device_event() == (uint32_t{kPackedEventDesc} << 16 | 1u << kPackedWrapBit));
  Rig without(8, {.event_idx = false});
  without.ring.suppress_notifications();
  CHECK(without.driver.device_event() == uint32_t{kPackedEventDisable} << 16);
  CHECK_FALSE(without.ring.enable_notifications());
  CHECK(without.driver.device_event() == uint32_t{kPackedEventEnable} << 16);
}

TEST_CASE("ring addresses and sizes are checked when the queue is enabled") {
  TestRam ram;
  const PackedTestQueue driver(ram, 8, true);
  const auto wrong = [&](auto change) {
    QueueLayout layout = driver.layout();
    change(layout);
    return !Virtqueue::check(layout, ram.memory(), {.packed = true}, kMaxSize).empty();
  };
  CHECK_FALSE(wrong([](QueueLayout&) {}));
  for (uint32_t size = 0; size <= 1024; ++size) {
    const bool good = size > 0 && size <= kMaxSize;
    CHECK(wrong([size](QueueLayout& layout) { layout.size = size; }) == !good);
  }
  CHECK(wrong([](QueueLayout& layout) { layout.size = 65536; }));
  CHECK(wrong([](QueueLayout& layout) { layout.descriptors += 8; }));
  CHECK(wrong([](QueueLayout& layout) { layout.driver_area += 2; }));
  CHECK(wrong([](QueueLayout& layout) { layout.device_area += 1; }));
  for (uint64_t address : {uint64_t{0}, ram.end(), ~uint64_t{15}}) {
    CHECK(wrong([&](QueueLayout& layout) { layout.descriptors = address; }));
    CHECK(wrong([&](QueueLayout& layout) { layout.driver_area = address; }));
    CHECK(wrong([&](QueueLayout& layout) { layout.device_area = address; }));
  }
  CHECK(wrong([&](QueueLayout& layout) { layout.descriptors = ram.end() - 8 * 16 + 16; }));
  CHECK_FALSE(wrong([&](QueueLayout& layout) { layout.device_area = ram.end() - 4; }));
  for (uint16_t begin : {uint16_t{8}, uint16_t{0x8008}, uint16_t{0x7fff}}) {
    CHECK(wrong([&](QueueLayout& layout) { layout.next_available = begin; }));
    CHECK(wrong([&](QueueLayout& layout) { layout.next_used = begin; }));
  }
}

TEST_CASE("the largest queue of any device works to its end, where positions meet the wrap bit") {
  TestRam ram;
  PackedTestQueue driver(ram, kLargestQueue, true);
  Virtqueue ring;
  REQUIRE(ring.enable(driver.layout(), ram.memory(), {.event_idx = true, .packed = true}, kLargestQueue, 4)
              .empty());
  const Segment one[] = {{kInside, 16, true}};
  Chain chain;
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < 2 * kLargestQueue + 10; ++i) {
    driver.add(one);
    driver.want_interrupt();
    wrong += i > 0 && !driver.publish();  // asked for below
    if (i == 0) driver.publish();
    wrong += ring.pop(chain) != Pop::Taken;
    ring.push(chain.token, i);
    wrong += !ring.publish();
    wrong += ring.enable_notifications();
    const auto used = driver.take();
    wrong += !used || used->length != i;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a queue can go on from the middle, and says where it is") {
  TestRam ram;
  PackedTestQueue driver(ram, 8, false);
  QueueLayout layout = driver.layout();
  layout.next_available = layout.next_used = 7;  // the wrap counter is 0: the second time around
  Virtqueue ring;
  REQUIRE(ring.enable(layout, ram.memory(), {.packed = true}, kMaxSize, kMaxSize).empty());
  driver.descriptor(7) = {kInside, 16, 3, kDescWrite | kPackedDescUsed};
  Chain chain;
  REQUIRE(ring.pop(chain) == Pop::Taken);
  CHECK(chain.token.id == 3);
  CHECK(ring.next_available() == 0x8000);
  CHECK(ring.pop(chain) == Pop::Empty);
  ring.push(chain.token, 1);
  ring.publish();
  CHECK(driver.descriptor(7).flags == kDescWrite);
}

}  // namespace
}  // namespace spindle::virtio
