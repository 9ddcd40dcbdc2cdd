#include <functional>
#include <vector>

#include "devices/virtio/virtqueue_test_rig.h"

namespace spindle::virtio {
namespace {

using test::kMaxSize;
using test::Segment;
using test::SplitTestQueue;
using test::TestRam;
using Rig = test::QueueRig<SplitTestQueue>;

TEST_CASE("normal descriptors may precede the one that refers to a table") {
  Rig rig;
  const uint64_t a = rig.ram.allocate(16), b = rig.ram.allocate(512), c = rig.ram.allocate(1);
  const uint64_t table = rig.ram.allocate(32);
  const Segment segments[] = {{a, 16, false}};
  // 2.7.5.3.2: normal descriptors may precede the one that refers to a table, whose WRITE flag means nothing.
  const uint16_t head = *rig.driver.add(segments);
  const auto other = static_cast<uint16_t>((head + 1) % 8);
  Descriptor* entries = rig.ram.at<Descriptor>(table);
  entries[0] = {b, 512, kDescWrite | kDescNext, 1};
  entries[1] = {c, 1, kDescWrite, 0};
  rig.driver.descriptor(head).flags = kDescNext;
  rig.driver.descriptor(head).next = other;
  rig.driver.descriptor(other) = {table, 32, kDescIndirect | kDescWrite, 0};
  rig.check_three_parts(a, b, c);
}

struct Malformed {
  const char* name;
  std::function<void(Rig&)> make;
};

void add_good(Rig& rig) {
  const uint64_t a = rig.ram.allocate(32);
  const Segment segments[] = {{a, 16, false}, {a + 16, 1, true}};
  rig.driver.add(segments);
}
void add_table(Rig& rig, std::function<void(Descriptor& reference, Descriptor* table)> spoil) {
  const uint64_t a = rig.ram.allocate(32);
  const uint64_t table = rig.ram.allocate(16 * 300);
  const Segment segments[] = {{a, 16, false}, {a + 16, 1, true}};
  const auto head = rig.driver.add_indirect(segments, table);
  spoil(rig.driver.descriptor(*head), rig.ram.at<Descriptor>(table));
}

const std::vector<Malformed>& malformed_chains() {
  static const uint64_t end = TestRam().end();
  static const uint64_t inside = TestRam::kBase + 0x10000;
  static const std::vector<Malformed> all = {
      {"a loop",
       [](Rig& rig) {
         add_good(rig);
         rig.driver.descriptor(1) = {inside, 1, kDescNext, 0};
       }},
      {"a descriptor that is its own next",
       [](Rig& rig) {
         add_good(rig);
         rig.driver.descriptor(0).next = 0;
       }},
      {"next out of range",
       [](Rig& rig) {
         add_good(rig);
         rig.driver.descriptor(0).next = 8;
       }},
      {"head out of range", [](Rig& rig) { rig.driver.offer(8); }},
      {"head far out of range", [](Rig& rig) { rig.driver.offer(0xffff); }},
      {"available index jumps by more than the size",
       [](Rig& rig) {
         for (int i = 0; i < 9; ++i) rig.driver.offer(0);
       }},
      {"available index goes back",
       [](Rig& rig) {
         for (int i = 0; i < 0xffff; ++i) rig.driver.offer(0);
       }},
      {"indirect table inside an indirect table",
       [](Rig& rig) {
         add_table(rig, [](Descriptor& reference, Descriptor* table) {
           table[1] = {reference.address, 32, kDescIndirect, 0};
         });
       }},
      {"indirect with next",
       [](Rig& rig) {
         add_table(rig, [](Descriptor& reference, Descriptor*) { reference.flags |= kDescNext; });
       }},
      {"indirect table of no entries",
       [](Rig& rig) { add_table(rig, [](Descriptor& reference, Descriptor*) { reference.length = 0; }); }},
      {"indirect table of a broken number of entries",
       [](Rig& rig) { add_table(rig, [](Descriptor& reference, Descriptor*) { reference.length = 33; }); }},
      {"indirect table outside RAM",
       [](Rig& rig) {
         add_table(rig, [](Descriptor& reference, Descriptor*) { reference.address = end - 16; });
       }},
      {"next beyond the indirect table",
       [](Rig& rig) { add_table(rig, [](Descriptor&, Descriptor* table) { table[0].next = 2; }); }},
      {"a loop in an indirect table",
       [](Rig& rig) {
         add_table(rig, [](Descriptor&, Descriptor* table) { table[1] = {inside, 1, kDescNext, 0}; });
       }},
      {"a chain longer than any queue",
       [](Rig& rig) {
         const uint64_t table = rig.ram.allocate(16 * 300);
         std::vector<Segment> segments(kMaxSize + 1, {inside, 1, true});
         rig.driver.add_indirect(segments, table);
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

TEST_CASE("a head made available again and again holds no more than the queue's size") {
  Rig rig;
  const uint64_t a = rig.ram.allocate(16);
  const Segment one[] = {{a, 16, true}};
  const auto head = rig.driver.add(one);
  for (int i = 0; i < 7; ++i) rig.driver.offer(*head);
  rig.driver.publish();
  for (int i = 0; i < 8; ++i) CHECK(rig.ring.pop(rig.chain) == Pop::Taken);
  rig.driver.offer(*head);
  rig.driver.publish();
  CHECK(rig.ring.pop(rig.chain) == Pop::Broken);
}

TEST_CASE(
    "an available index that goes back takes nothing away, and breaks the queue when it is looked at again") {
  Rig rig;
  const Segment one[] = {{rig.ram.allocate(16), 16, true}};
  for (int i = 0; i < 4; ++i) rig.driver.add(one);
  REQUIRE(rig.pop() == Pop::Taken);
  rig.driver.set_available_index(2);
  for (int i = 0; i < 3; ++i) CHECK(rig.ring.pop(rig.chain) == Pop::Taken);
  CHECK(rig.ring.pop(rig.chain) == Pop::Broken);
  CHECK(rig.ring.outstanding() == 4);
}

TEST_CASE("chains that share descriptors come out each under its own head") {
  Rig rig;
  const uint64_t a = rig.ram.allocate(32);
  const Segment segments[] = {{a, 16, false}, {a + 16, 8, true}, {a + 24, 1, true}};
  const auto first = rig.driver.add(segments);
  REQUIRE(first == 0);
  rig.driver.descriptor(7) = {a + 4, 4, kDescNext, 1};  // and on in the middle of the first
  rig.driver.offer(7);
  REQUIRE(rig.pop() == Pop::Taken);
  CHECK(rig.chain.token.id == 0);
  CHECK(rig.chain.readable_bytes == 16);
  REQUIRE(rig.pop() == Pop::Taken);
  CHECK(rig.chain.token.id == 7);
  CHECK(rig.chain.readable_bytes == 4);
  CHECK(rig.chain.writable_bytes == 9);
}

TEST_CASE("the guest may change a descriptor after it was taken") {
  Rig rig;
  const uint64_t a = rig.ram.allocate(512);
  const Segment one[] = {{a, 512, true}};
  const auto head = rig.driver.add(one);
  REQUIRE(rig.pop() == Pop::Taken);
  rig.driver.descriptor(*head) = {~0ull, ~0u, kDescIndirect, 9};
  CHECK(rig.chain.parts[0].iov_len == 512);
  CHECK(rig.chain.parts[0].iov_base == rig.ram.at(a));
}

TEST_CASE("ring addresses and sizes are checked when the queue is enabled") {
  TestRam ram;
  const SplitTestQueue driver(ram, 8, true);
  const auto wrong = [&](auto change) {
    QueueLayout layout = driver.layout();
    change(layout);
    return !Virtqueue::check(layout, ram.memory(), {}, kMaxSize).empty();
  };
  CHECK_FALSE(wrong([](QueueLayout&) {}));
  for (uint32_t size = 0; size <= 1024; ++size) {
    const bool good = size > 0 && size <= kMaxSize && (size & (size - 1)) == 0;
    CHECK(wrong([size](QueueLayout& layout) { layout.size = size; }) == !good);
  }
  CHECK(wrong([](QueueLayout& layout) { layout.size = 65536; }));
  CHECK(wrong([](QueueLayout& layout) { layout.descriptors += 8; }));
  CHECK(wrong([](QueueLayout& layout) { layout.driver_area += 1; }));
  CHECK(wrong([](QueueLayout& layout) { layout.device_area += 2; }));
  for (uint64_t address : {uint64_t{0}, ram.end(), ram.end() - 16, ~uint64_t{15}}) {
    CHECK(wrong([&](QueueLayout& layout) { layout.descriptors = address; }));
    CHECK(wrong([&](QueueLayout& layout) { layout.driver_area = address; }));
    CHECK(wrong([&](QueueLayout& layout) { layout.device_area = address; }));
  }
  // The event fields at the ends of the rings must lie in RAM too.
  CHECK(wrong([&](QueueLayout& layout) { layout.device_area = ram.end() - 4 - 8 * 8; }));
  CHECK(wrong([&](QueueLayout& layout) { layout.driver_area = ram.end() - 4 - 2 * 8; }));
}

TEST_CASE("a queue can go on from indices in the middle, as another transport needs it") {
  TestRam ram;
  SplitTestQueue driver(ram, 8, false);
  QueueLayout layout = driver.layout();
  layout.next_available = 65535;
  layout.next_used = 65535;
  Virtqueue ring;
  REQUIRE(ring.enable(layout, ram.memory(), {}, kMaxSize, kMaxSize).empty());
  const uint64_t a = ram.allocate(16);
  driver.descriptor(3) = {a, 16, kDescWrite, 0};
  for (int i = 0; i < 8; ++i) driver.offer(3);  // fills every slot, the last one included
  driver.set_available_index(0);
  Chain chain;
  REQUIRE(ring.pop(chain) == Pop::Taken);
  CHECK(chain.token.id == 3);
  CHECK(ring.next_available() == 0);
  CHECK(ring.pop(chain) == Pop::Empty);
}

}  // namespace
}  // namespace spindle::virtio
