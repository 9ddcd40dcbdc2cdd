// Drivers that write what they should not into the BAR: registers in odd sizes and at odd places,
// notifications for queues that do not exist, features when it is too late, and machine resets at any time.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "devices/virtio/pci_test_rig.h"

namespace spindle::virtio {
namespace {

using test::kBarAddress;
using test::kWanted;
using test::Op;
using test::PciRig;
using test::TestQueue;
using test::TestRequest;

// 4.1.4.3.1: a driver uses the width of each field, and halves of the wide ones.
bool is_a_field(unsigned offset, unsigned width) {
  constexpr std::array<std::pair<unsigned, unsigned>, 10> kFields{{{common::kDeviceFeatureSelect, 4},
                                                                   {common::kDriverFeatureSelect, 4},
                                                                   {common::kDriverFeature, 4},
                                                                   {common::kConfigMsixVector, 2},
                                                                   {common::kDeviceStatus, 1},
                                                                   {common::kQueueSelect, 2},
                                                                   {common::kQueueSize, 2},
                                                                   {common::kQueueMsixVector, 2},
                                                                   {common::kQueueEnable, 2},
                                                                   {common::kQueueReset, 2}}};
  if (std::ranges::find(kFields, std::pair{offset, width}) != kFields.end()) return true;
  if (offset < common::kQueueDesc || offset >= common::kQueueDevice + 8) return false;
  return (width == 8 && offset % 8 == 0) || (width == 4 && offset % 4 == 0);
}

std::vector<uint8_t> common_bytes(PciRig& rig) {
  std::vector<uint8_t> bytes;
  for (unsigned offset = 0; offset < 64; ++offset)
    bytes.push_back(static_cast<uint8_t>(rig.driver.common(offset, 1)));
  return bytes;
}

TEST_CASE("config writes of odd sizes: the common configuration takes whole fields only") {
  for (int stage = 0; stage < 3; ++stage) {
    CAPTURE(stage);
    PciRig rig;
    if (stage == 1) REQUIRE(rig.driver.negotiate(kWanted));
    if (stage == 2) rig.start();
    const auto before = common_bytes(rig);
    const uint64_t base = rig.driver.structure(kPciCapCommon).offset;
    for (unsigned width = 1; width <= 8; ++width) {
      for (unsigned offset = 0; offset < 64; ++offset) {
        if (is_a_field(offset, width)) continue;
        for (uint64_t value : {~0ull, 0ull, 1ull, 0x0101'0101'0101'0101ull}) {
          CHECK(rig.driver.write(base + offset, width, value) == nullptr);
        }
        CAPTURE(offset);
        CAPTURE(width);
        REQUIRE(common_bytes(rig) == before);
      }
    }
    rig.settle();
    CHECK(common_bytes(rig) == before);
  }
}

TEST_CASE("reads of odd sizes give the bytes that are there, and zeroes beyond the structures") {
  PciRig rig;
  rig.start();
  const uint64_t base = rig.driver.structure(kPciCapCommon).offset;
  const auto bytes = common_bytes(rig);
  for (unsigned width = 1; width <= 8; ++width) {
    for (unsigned offset = 0; offset < 64; ++offset) {
      uint64_t expected = 0;
      for (unsigned i = 0; i < width && offset + i < 64; ++i)
        expected |= uint64_t{bytes[offset + i]} << (8 * i);
      CAPTURE(offset);
      REQUIRE(rig.driver.read(base + offset, width) == expected);
    }
    const auto& device = rig.driver.structure(kPciCapDevice);
    CHECK(rig.driver.read(device.offset + device.length, width) == 0);
    CHECK(rig.driver.read(device.offset + device.length - 1, width) <= 0xff);
  }
}

TEST_CASE("notify for queues that do not exist: nobody is woken, and nothing breaks") {
  PciRig rig;
  rig.start();
  TestRequest request(rig.ram, 512);
  request.fill(kBlkTypeIn, 0);
  rig.queue.add(request.segments(kBlkTypeIn));
  rig.queue.publish();
  const uint64_t first = rig.driver.notify_offset(0);
  const uint32_t step = rig.driver.config(rig.driver.structure(kPciCapNotify).capability + 16, 4);
  for (uint64_t at = first + step; at < (rig.driver.msix.offset & ~7u); ++at) {
    for (unsigned width : {1u, 2u, 4u, 8u}) CHECK(rig.driver.write(at, width, 0) == nullptr);
  }
  rig.settle();
  CHECK_FALSE(rig.queue.take());
  CHECK(rig.driver.status() == (kStatusAcknowledge | kStatusDriver | kStatusFeaturesOk | kStatusDriverOk));
  // The place says which queue it is, whatever is written there.
  rig.driver.write(first, 2, 0xffff);
  rig.settle();
  CHECK(rig.queue.take());
  CHECK(request.status() == kBlkStatusOk);
}

TEST_CASE("features acknowledged late count for nothing") {
  PciRig rig;
  rig.start(kNoVector, kWanted & ~(kFeatureRingIndirectDesc | kBlkConfigWce));
  for (unsigned half = 0; half < 2; ++half) {
    rig.driver.set_common(common::kDriverFeatureSelect, 4, half);
    rig.driver.set_common(common::kDriverFeature, 4,
                          static_cast<uint32_t>(rig.device->features() >> 32 * half));
  }
  rig.driver.add_status(kStatusFeaturesOk);
  rig.driver.add_status(kStatusDriverOk);
  rig.settle();
  CHECK(rig.driver.set_writeback(0) == nullptr);
  rig.settle();
  CHECK(rig.driver.writeback() == 1);
  TestRequest request(rig.ram, 512);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
  request.fill(kBlkTypeIn, 0);
  rig.queue.add_indirect(request.segments(kBlkTypeIn), rig.ram.allocate(48));
  rig.queue.publish();
  rig.driver.write(rig.driver.notify_offset(0), 2, 0);
  rig.settle();
  CHECK_FALSE(rig.queue.take());
  CHECK((rig.driver.status() & kStatusNeedsReset));
}

TEST_CASE("a machine reset with requests in flight waits for them, unseen by the driver") {
  PciRig rig;
  rig.enable_msix();
  rig.start(1);
  TestRequest read(rig.ram, 512), write(rig.ram, 512);
  std::ranges::fill(write.data(), uint8_t{0x77});
  rig.node->hold(Op::Read);
  rig.node->hold(Op::Write);
  rig.begin(read, kBlkTypeIn, 5);
  rig.begin(write, kBlkTypeOut, 6);
  rig.function->reset();
  rig.settle();
  CHECK(rig.function->status() != 0);
  CHECK(rig.device->in_flight() == 2);
  rig.node->release(Op::Read);
  rig.node->release(Op::Write);
  rig.settle();
  CHECK(rig.function->status() == 0);
  CHECK(rig.device->in_flight() == 0);
  CHECK_FALSE(rig.queue.take());
  CHECK(rig.machine.messages(test::kQueueMessage) == 0);
  CHECK(rig.node->bytes(6 * 512, 1)[0] == 0x77);

  rig.driver.map(kBarAddress);
  TestQueue queue(rig.ram, 16, true);
  REQUIRE(rig.driver.negotiate(kWanted));
  REQUIRE(rig.driver.set_queue(0, queue.layout()));
  rig.driver.add_status(kStatusDriverOk);
  rig.settle();
  CHECK(rig.run(0, queue, read, kBlkTypeIn, 6) == kBlkStatusOk);
  CHECK(read.data()[0] == 0x77);
}

}  // namespace
}  // namespace spindle::virtio
