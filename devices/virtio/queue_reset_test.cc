// RING_RESET (2.6.1): one queue is stopped and started again, elsewhere, while the others go on.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "devices/virtio/pci_test_rig.h"

namespace spindle::virtio {
namespace {

using test::kQueueMessage;
using test::kWanted;
using test::Op;
using test::TestQueue;
using test::TestRequest;

constexpr uint64_t kWithReset = kWanted | kFeatureRingReset | kBlkMq;

struct Rig : test::PciRig {
  explicit Rig(CacheMode cache = CacheMode::Writeback) : PciRig(cache, 2), second(ram, 64, true) {}
  uint64_t of_queue(uint16_t index, unsigned field) {
    driver.set_common(common::kQueueSelect, 2, index);
    return driver.common(field, 2);
  }
  TestQueue second;
};

TEST_CASE("a reset queue drains, unseen by the driver, while the others go on") {
  Rig rig;
  rig.enable_msix();
  rig.start(1, kWithReset);
  REQUIRE(rig.driver.set_queue(1, rig.second.layout()));
  TestRequest read(rig.ram, 512), write(rig.ram, 512);
  rig.node->hold(Op::Read);
  rig.begin(read, kBlkTypeIn, 3);
  rig.driver.reset_queue(0);
  rig.settle();
  CHECK(rig.of_queue(0, common::kQueueReset) == 1);
  CHECK(rig.of_queue(0, common::kQueueEnable) == 1);

  std::ranges::fill(write.data(), uint8_t{0x21});
  CHECK(rig.run(1, rig.second, write, kBlkTypeOut, 9) == kBlkStatusOk);
  CHECK(rig.node->bytes(9 * 512, 1)[0] == 0x21);
  // Until the reset has ended nothing else can be done to the queue.
  CHECK(rig.of_queue(0, common::kQueueMsixVector) == 1);
  rig.driver.set_common(common::kQueueMsixVector, 2, 0);
  rig.driver.set_common(common::kQueueSize, 2, 8);
  rig.driver.set_common(common::kQueueReset, 2, 1);
  CHECK(rig.of_queue(0, common::kQueueMsixVector) == 1);
  CHECK(rig.of_queue(0, common::kQueueSize) == 64);

  rig.node->release(Op::Read);
  rig.settle();
  CHECK(rig.of_queue(0, common::kQueueReset) == 0);
  CHECK(rig.of_queue(0, common::kQueueEnable) == 0);
  CHECK(rig.of_queue(0, common::kQueueSize) == 256);
  CHECK(rig.of_queue(0, common::kQueueMsixVector) == kNoVector);
  CHECK(
      std::ranges::equal(read.data(), rig.node->bytes(3 * 512, 512)));  // its data came, no used element did
  CHECK_FALSE(rig.queue.take());
  CHECK(rig.machine.messages(kQueueMessage) == 0);
  CHECK(rig.device->in_flight() == 0);
  CHECK(rig.of_queue(1, common::kQueueEnable) == 1);
}

TEST_CASE("after its reset a queue is enabled with another layout, and begins at its first entries") {
  Rig rig;
  rig.start(kNoVector, kWithReset);
  TestRequest request(rig.ram, 512);
  TestQueue* before = &rig.queue;
  std::vector<std::unique_ptr<TestQueue>> queues;
  for (uint32_t size : {8u, 256u, 16u}) {
    for (int i = 0; i < 3; ++i) CHECK(rig.run(0, *before, request, kBlkTypeIn, 0) == kBlkStatusOk);
    rig.driver.reset_queue(0);
    rig.settle();
    rig.begin(0, *before, request, kBlkTypeIn,
              0);  // the old ring is the driver's: nobody looks at it any more
    CHECK(request.status() == 0xff);
    CHECK_FALSE(before->take());

    queues.push_back(std::make_unique<TestQueue>(rig.ram, size, true));
    before = queues.back().get();
    REQUIRE(rig.driver.set_queue(0, before->layout()));
    rig.settle();
    for (uint32_t i = 0; i < 2 * size; ++i)
      CHECK(rig.run(0, *before, request, kBlkTypeIn, i) == kBlkStatusOk);
  }
  CHECK((rig.driver.status() & kStatusNeedsReset) == 0);
}

TEST_CASE("queue_reset means nothing before FEATURES_OK, without the feature, or with another value") {
  Rig rig;
  TestRequest request(rig.ram, 512);
  rig.driver.reset_queue(0);
  rig.start(kNoVector, kWanted);
  rig.driver.reset_queue(0);
  rig.settle();
  CHECK(rig.of_queue(0, common::kQueueReset) == 0);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);

  Rig other;
  other.start(kNoVector, kWithReset);
  for (uint64_t value : {0u, 2u, 0x101u, 0xffffu}) other.driver.set_common(common::kQueueReset, 2, value);
  other.driver.set_common(common::kQueueReset, 1, 1);
  other.driver.set_common(common::kQueueNotifyData, 4, 0x10001);
  other.driver.set_common(common::kQueueNotifyData, 2, 1);
  other.driver.reset_queue(2);  // there is none
  other.settle();
  CHECK(other.of_queue(0, common::kQueueEnable) == 1);
  CHECK(other.of_queue(0, common::kQueueNotifyData) == 0);
  TestRequest read(other.ram, 512);
  CHECK(other.run(read, kBlkTypeIn, 0) == kBlkStatusOk);
}

TEST_CASE("a queue that is not enabled goes back to its first state at once") {
  Rig rig;
  rig.start(kNoVector, kWithReset);
  rig.driver.set_common(common::kQueueSelect, 2, 1);
  rig.driver.set_common(common::kQueueSize, 2, 8);
  rig.driver.set_common(common::kQueueDesc, 8, 0x1000);
  rig.driver.reset_queue(1);
  CHECK(rig.of_queue(1, common::kQueueReset) == 0);
  CHECK(rig.of_queue(1, common::kQueueSize) == 256);
  CHECK(rig.driver.common(common::kQueueDesc, 8) == 0);
}

TEST_CASE("a queue under reset when DRIVER_OK comes does not start") {
  Rig rig;
  rig.start(kNoVector, kWithReset);
  TestRequest request(rig.ram, 512);
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusOk);
  rig.driver.set_status(0);
  rig.settle();
  rig.node->hold(Op::Flush);  // of FEATURES_OK without FLUSH: the reset of the queue waits behind it
  TestQueue queue(rig.ram, 16, true);
  REQUIRE(rig.driver.negotiate(test::kRingKind | kFeatureRingEventIdx | kFeatureRingReset));
  REQUIRE(rig.driver.set_queue(0, queue.layout()));
  rig.driver.reset_queue(0);
  CHECK(rig.of_queue(0, common::kQueueReset) == 1);
  rig.driver.add_status(kStatusDriverOk);
  rig.begin(0, queue, request, kBlkTypeIn, 0);
  rig.node->release(Op::Flush);
  rig.settle();
  CHECK(rig.of_queue(0, common::kQueueReset) == 0);
  CHECK(rig.of_queue(0, common::kQueueEnable) == 0);
  CHECK_FALSE(queue.take());
  REQUIRE(rig.driver.set_queue(0, queue.layout()));
  rig.settle();
  CHECK(queue.take());
}

TEST_CASE("a broken queue serves again after its reset; the device still asks for its own") {
  Rig rig;
  rig.start(kNoVector, kWithReset);
  rig.queue.spoil();
  rig.driver.write(rig.driver.notify_offset(0), 2, 0);
  rig.settle();
  CHECK((rig.driver.status() & kStatusNeedsReset));
  rig.driver.reset_queue(0);
  rig.settle();
  TestQueue next(rig.ram, 16, true);
  TestRequest request(rig.ram, 512);
  REQUIRE(rig.driver.set_queue(0, next.layout()));
  rig.settle();
  CHECK(rig.run(0, next, request, kBlkTypeIn, 0) == kBlkStatusOk);
  CHECK((rig.driver.status() & kStatusNeedsReset));
}

TEST_CASE("a reset of the device, or its end, waits for the reset of a queue that came before") {
  for (bool end : {false, true}) {
    Rig rig;
    rig.start(kNoVector, kWithReset);
    TestRequest read(rig.ram, 512);
    rig.node->hold(Op::Read);
    rig.begin(read, kBlkTypeIn, 3);
    rig.driver.reset_queue(0);
    bool ended = false;
    if (end) {
      spawn(rig.function->stop(), [&] { ended = true; });
    } else {
      rig.driver.set_status(0);
    }
    rig.settle();
    CHECK_FALSE(ended);
    CHECK(rig.driver.status() != 0);
    rig.node->release(Op::Read);
    rig.settle();
    CHECK(ended == end);
    CHECK(rig.device->in_flight() == 0);
    if (!end) {
      CHECK(rig.driver.status() == 0);
      CHECK(rig.of_queue(0, common::kQueueReset) == 0);
      CHECK(rig.of_queue(0, common::kQueueEnable) == 0);
    }
  }
}

}  // namespace
}  // namespace spindle::virtio
