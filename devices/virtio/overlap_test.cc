// Buffers, tables and rings that lie over each other. The standard forbids a driver little of it, so a
// request is carried out as it stands; what a guest does to its own rings harms nobody else.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "devices/virtio/blk_test_rig.h"
#include "devices/virtio/virtqueue_test_rig.h"

namespace spindle::virtio {
namespace {

using test::BlkRig;
using test::kRingFeatures;
using test::Segment;
using test::TestQueue;
using test::TestRequest;

/// A request whose parts may lie anywhere. The status is what its byte says afterwards.
struct Overlapping {
  BlkRig rig;
  const uint64_t base = rig.ram.allocate(4096);

  void put_header(uint32_t type, uint64_t sector) {
    *rig.ram.at<BlkRequestHeader>(base) = {.type = type, .reserved = 0, .sector = sector};
  }
  uint8_t run(const std::vector<Segment>& segments) {
    REQUIRE(rig.queue.add(segments));
    rig.kick();
    rig.settle();
    REQUIRE(rig.queue.take());
    CHECK(rig.transport.reason.empty());
    return *rig.ram.at(segments.back().address);
  }
  std::vector<uint8_t> memory(uint64_t address, uint64_t bytes) {
    return {rig.ram.at(address), rig.ram.at(address) + bytes};
  }
};

TEST_CASE("data may lie over its own header, and over itself") {
  Overlapping test;
  const uint64_t base = test.base;
  test.put_header(kBlkTypeIn, 3);
  CHECK(test.run({{base, 16, false}, {base, 512, true}, {base + 600, 1, true}}) == kBlkStatusOk);
  CHECK(test.memory(base, 512) == test.rig.node->bytes(3 * 512, 512));
  // Two sectors into the same place: the second stays.
  test.put_header(kBlkTypeIn, 8);
  CHECK(test.run(
            {{base, 16, false}, {base + 1024, 512, true}, {base + 1024, 512, true}, {base + 600, 1, true}}) ==
        kBlkStatusOk);
  CHECK(test.memory(base + 1024, 512) == test.rig.node->bytes(9 * 512, 512));
  // The header is part of what is written.
  test.put_header(kBlkTypeOut, 20);
  const auto written = test.memory(base, 512);
  CHECK(test.run({{base, 16, false}, {base, 512, false}, {base + 600, 1, true}}) == kBlkStatusOk);
  CHECK(test.rig.node->bytes(20 * 512, 512) == written);
}

TEST_CASE("a status inside the data is written last") {
  Overlapping test;
  const uint64_t base = test.base;
  test.put_header(kBlkTypeIn, 5);
  auto expected = test.rig.node->bytes(5 * 512, 512);
  REQUIRE(expected[100] != kBlkStatusOk);
  CHECK(test.run({{base, 16, false}, {base + 1024, 512, true}, {base + 1124, 1, true}}) == kBlkStatusOk);
  expected[100] = kBlkStatusOk;
  CHECK(test.memory(base + 1024, 512) == expected);
}

TEST_CASE("data read into the rings harms the driver alone: a reset brings the device back") {
  const auto areas = {&QueueLayout::descriptors, &QueueLayout::driver_area, &QueueLayout::device_area};
  for (const auto area : areas) {
    Overlapping test;
    BlkRig& rig = test.rig;
    test.put_header(kBlkTypeIn, 7);
    REQUIRE(rig.queue.add(std::vector<Segment>{
        {test.base, 16, false}, {rig.queue.layout().*area, 1024, true}, {test.base + 600, 1, true}}));
    for (int i = 0; i < 3; ++i) {
      rig.kick();
      rig.settle();
    }
    CHECK(*rig.ram.at(test.base + 600) == kBlkStatusOk);
    rig.reactor->wait(rig.device->reset());
    CHECK(rig.device->in_flight() == 0);
    TestQueue fresh(rig.ram, 16, true);
    REQUIRE(rig.device->acknowledge(kRingFeatures | kBlkFlush));
    rig.reactor->wait(rig.device->negotiate());
    REQUIRE(rig.device->start_queue(0, fresh.layout()).empty());
    TestRequest request(rig.ram, 512);
    request.fill(kBlkTypeIn, 9);
    REQUIRE(fresh.add(request.segments(kBlkTypeIn)));
    fresh.publish();
    rig.device->notify(0);
    rig.settle();
    REQUIRE(fresh.take());
    CHECK(request.status() == kBlkStatusOk);
    CHECK(std::ranges::equal(request.data(), rig.node->bytes(9 * 512, 512)));
  }
}

TEST_CASE("chains may share an indirect table, and it may lie over the ring") {
  test::QueueRig<TestQueue> rig;
  const uint64_t a = rig.ram.allocate(512), table = rig.ram.allocate(32);
  const Segment segments[] = {{a, 16, false}, {a, 512, true}};
  const auto first = rig.driver.add_indirect(segments, table);
  const auto second = rig.driver.add_indirect(segments, table);
  REQUIRE((first && second));
  for (const auto& name : {first, second}) {
    REQUIRE(rig.pop() == Pop::Taken);
    CHECK(rig.chain.token.id == *name);
    CHECK(rig.chain.parts.size() == 2);
    CHECK(rig.chain.fault == ChainFault::None);
  }
  // The last two entries of the ring, where nothing else is.
  REQUIRE(rig.driver.add_indirect(segments, rig.driver.layout().descriptors + 16 * 6));
  REQUIRE(rig.pop() == Pop::Taken);
  CHECK(rig.chain.writable_bytes == 512);
}

}  // namespace
}  // namespace spindle::virtio
