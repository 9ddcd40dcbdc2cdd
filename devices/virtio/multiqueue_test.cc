// Several queues of one disk: each has its doorbell and vector, and what is promised of a disk holds across
// them.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "devices/virtio/pci_test_rig.h"

namespace spindle::virtio {
namespace {

using test::kBarAddress;
using test::kDiskBytes;
using test::kWanted;
using test::Op;
using test::TestQueue;
using test::TestRequest;

struct Rig : test::PciRig {
  explicit Rig(unsigned count, CacheMode cache = CacheMode::Writeback) : PciRig(cache, count) {
    enable_msix();
    for (unsigned i = 0; i < count; ++i) driver.set_vector(i + 1, message(i), false);
    REQUIRE(driver.negotiate(kWanted | kBlkMq));
    for (unsigned i = 0; i < count; ++i) {
      queues.push_back(std::make_unique<TestQueue>(ram, 16, true));
      REQUIRE(driver.set_queue(static_cast<uint16_t>(i), queues[i]->layout(), static_cast<uint16_t>(i + 1)));
    }
    driver.add_status(kStatusDriverOk);
    settle();
  }
  static uint32_t message(unsigned queue) { return 0x100 + queue; }
  void begin(unsigned on, TestRequest& request, uint32_t type, uint64_t sector) {
    PciRig::begin(static_cast<uint16_t>(on), *queues[on], request, type, sector);
  }
  uint8_t run(unsigned on, TestRequest& request, uint32_t type, uint64_t sector) {
    return PciRig::run(static_cast<uint16_t>(on), *queues[on], request, type, sector);
  }
  std::vector<std::unique_ptr<TestQueue>> queues;
};

TEST_CASE("every queue of many has a doorbell and a vector of its own") {
  for (unsigned count : {2u, 64u}) {
    Rig rig(count);
    CHECK(rig.driver.common(common::kNumQueues, 2) == count);
    CHECK(rig.driver.read(rig.driver.structure(kPciCapDevice).offset + 34, 2) == count);
    CHECK(rig.driver.config(rig.driver.msix.capability + 2, 2) % 2048 == count);  // one less than there are
    const auto doorbells = rig.machine.doorbells();
    CHECK(doorbells.size() == count);
    for (unsigned i = 0; i < count; ++i)
      CHECK(doorbells.contains(kBarAddress + rig.driver.notify_offset(static_cast<uint16_t>(i))));
    TestRequest request(rig.ram, 512);
    for (unsigned i = 0; i < count; ++i) {
      CHECK(rig.run(i, request, kBlkTypeIn, i) == kBlkStatusOk);
      CHECK(std::ranges::equal(request.data(), rig.node->bytes(i * 512, 512)));
      for (unsigned other = 0; other < count; ++other)
        CHECK(rig.machine.messages(rig.message(other)) == (other <= i ? 1 : 0));
    }
  }
}

TEST_CASE("D1: a flush on one queue covers what completed on the others") {
  Rig rig(4);
  TestRequest write(rig.ram, 512), flush(rig.ram, 0);
  for (unsigned i = 0; i < 4; ++i) {
    std::ranges::fill(write.data(), static_cast<uint8_t>(0x90 + i));
    CHECK(rig.run(i, write, kBlkTypeOut, 10 + i) == kBlkStatusOk);
  }
  CHECK(rig.node->durable(0, kDiskBytes) != rig.node->bytes(0, kDiskBytes));
  CHECK(rig.run(2, flush, kBlkTypeFlush, 0) == kBlkStatusOk);
  CHECK(rig.node->count(Op::Flush) == 1);
  CHECK(rig.node->durable(0, kDiskBytes) == rig.node->bytes(0, kDiskBytes));
}

TEST_CASE("D1, D5: a flush that began before a write on another queue completed is followed by another") {
  Rig rig(2);
  TestRequest first(rig.ram, 512), second(rig.ram, 512), early(rig.ram, 0), late(rig.ram, 0);
  std::ranges::fill(second.data(), uint8_t{0x42});
  CHECK(rig.run(0, first, kBlkTypeOut, 0) == kBlkStatusOk);
  rig.node->hold(Op::Flush);
  rig.begin(0, early, kBlkTypeFlush, 0);
  CHECK(rig.run(1, second, kBlkTypeOut, 1) == kBlkStatusOk);
  rig.begin(1, late, kBlkTypeFlush, 0);
  REQUIRE(rig.node->release_one(Op::Flush));
  rig.settle();
  CHECK(rig.queues[0]->take());
  CHECK_FALSE(rig.queues[1]->take());
  rig.node->release(Op::Flush);
  rig.settle();
  CHECK(rig.queues[1]->take());
  CHECK(rig.node->durable(512, 1)[0] == 0x42);
}

TEST_CASE("D2, D3: the cache mode is the disk's: after a toggle the writes of all queues are durable") {
  Rig rig(3);
  TestRequest write(rig.ram, 512);
  std::ranges::fill(write.data(), uint8_t{0x61});
  CHECK(rig.run(0, write, kBlkTypeOut, 1) == kBlkStatusOk);
  const auto parked = rig.driver.set_writeback(0);
  rig.settle();
  CHECK(rig.driver.writeback() == 0);
  for (unsigned i = 0; i < 3; ++i) {
    CHECK(rig.run(i, write, kBlkTypeOut, 20 + i) == kBlkStatusOk);
    CHECK(rig.node->durable(0, kDiskBytes) == rig.node->bytes(0, kDiskBytes));
  }
}

TEST_CASE("a queue that breaks leaves the others at work") {
  Rig rig(2);
  TestRequest request(rig.ram, 512);
  rig.queues[0]->spoil();
  rig.driver.write(rig.driver.notify_offset(0), 2, 0);
  rig.settle();
  CHECK((rig.driver.status() & kStatusNeedsReset));
  CHECK(rig.run(1, request, kBlkTypeIn, 5) == kBlkStatusOk);
}

TEST_CASE("a reset waits for the requests of all queues") {
  Rig rig(3);
  std::vector<TestRequest> reads;
  rig.node->hold(Op::Read);
  for (unsigned i = 0; i < 3; ++i) {
    reads.emplace_back(rig.ram, 512);
    rig.begin(i, reads[i], kBlkTypeIn, i);
  }
  CHECK(rig.device->in_flight() == 3);
  rig.driver.set_status(0);
  for (unsigned left = 3; left > 0; --left) {
    rig.settle();
    CHECK(rig.driver.status() != 0);
    REQUIRE(rig.node->release_one(Op::Read));
  }
  rig.settle();
  CHECK(rig.driver.status() == 0);
  for (auto& queue : rig.queues) CHECK_FALSE(queue->take());
}

}  // namespace
}  // namespace spindle::virtio
