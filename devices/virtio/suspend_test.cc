// A stopped guest's device: what was taken ends, nothing more is taken until the guest goes on, and nothing
// is lost.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "devices/virtio/blk_test_rig.h"

namespace spindle::virtio {
namespace {

using test::kDiskBytes;
using test::kRingFeatures;
using test::Op;
using test::TestRequest;

// A queue that needs no driver: its descriptors, its available ring and the header of its only request lie in
// one sector of memory, and the request reads the next sector of the disk over them, which makes it available
// anew for the sector after that.
struct SelfFeeding : test::BlkRig {
  static constexpr uint32_t kSize = 4;
  static constexpr uint64_t kSectors = kDiskBytes / kBlkSector;

  SelfFeeding() {
    layout.size = kSize;
    layout.descriptors = ram.allocate(kBlkSector, kBlkSector);
    layout.driver_area = layout.descriptors + descriptor_table_bytes(kSize);
    layout.device_area = ram.allocate(used_ring_bytes(kSize));
    status = ram.allocate(1);
    for (uint64_t sector = 0; sector < kSectors; ++sector)
      node->put(sector * kBlkSector, image(sector + 1, static_cast<uint16_t>(sector + 2)));
    const auto first = image(0, 1);
    std::ranges::copy(first, ram.at(layout.descriptors));
    reactor->wait(device->reset());
    REQUIRE(device->acknowledge((kRingFeatures & ~kFeatureRingPacked) | kBlkFlush));  // its rings are split
    reactor->wait(device->negotiate());
    REQUIRE(device->start_queue(0, layout).empty());
  }
  // The sector of memory that asks for `sector` of the disk, as the chain that brings the index to `index`.
  std::vector<uint8_t> image(uint64_t sector, uint16_t index) const {
    const uint64_t header_at = kBlkSector / 2;
    const Descriptor descriptors[] = {
        {layout.descriptors + header_at, sizeof(BlkRequestHeader), kDescNext, 1},
        {layout.descriptors, kBlkSector, kDescNext | kDescWrite, 2},
        {status, 1, kDescWrite, 0},
    };
    const uint16_t available[2 + kSize] = {0, index};
    const BlkRequestHeader header{.type = kBlkTypeIn, .reserved = 0, .sector = sector};
    std::vector<uint8_t> bytes(kBlkSector);
    std::memcpy(bytes.data(), descriptors, sizeof descriptors);
    std::memcpy(bytes.data() + descriptor_table_bytes(kSize), available, sizeof available);
    std::memcpy(bytes.data() + header_at, &header, sizeof header);
    return bytes;
  }

  QueueLayout layout;
  uint64_t status = 0;
};

TEST_CASE("a queue that feeds itself does not keep a suspended device busy") {
  SelfFeeding rig;
  rig.node->hold(Op::Read);
  rig.device->notify(0);
  rig.settle();
  REQUIRE(rig.device->in_flight() == 1);
  rig.device->suspend();
  rig.node->release(Op::Read);
  for (int look = 0; look < 3; ++look) {
    rig.device->notify(0);
    rig.settle();
    CHECK(rig.node->count(Op::Read) == 1);
    CHECK(rig.device->in_flight() == 0);
  }
  rig.device->resume();
  const auto fed = [&] { return rig.node->count(Op::Read) == SelfFeeding::kSectors; };
  for (uint64_t turns = 0; turns < SelfFeeding::kSectors && !fed(); ++turns) rig.settle();
  CHECK(fed());
}

TEST_CASE("what was taken ends while the device is suspended, the rest waits in the queue and is not lost") {
  for (bool notified : {true, false}) {
    test::BlkRig rig;
    std::vector<std::unique_ptr<TestRequest>> requests;
    const auto add = [&](uint64_t sector) {
      requests.push_back(std::make_unique<TestRequest>(rig.ram, 512));
      requests.back()->fill(kBlkTypeIn, sector);
      REQUIRE(rig.queue.add(requests.back()->segments(kBlkTypeIn)));
    };
    rig.node->hold(Op::Read);
    add(0);
    rig.kick();
    rig.settle();
    rig.device->suspend();
    for (uint64_t sector = 1; sector < 5; ++sector) add(sector);
    rig.queue.publish();
    if (notified) rig.device->notify(0);
    rig.node->release(Op::Read);
    rig.settle();
    CHECK(rig.queue.used_waiting() == 1);
    CHECK(rig.device->in_flight() == 0);
    rig.device->resume();
    rig.settle();
    CHECK(rig.queue.used_waiting() == 5);
    for (uint64_t sector = 0; sector < 5; ++sector) {
      CHECK(requests[sector]->status() == kBlkStatusOk);
      CHECK(std::ranges::equal(requests[sector]->data(), rig.node->bytes(sector * 512, 512)));
    }
  }
}

TEST_CASE("a device that is reset while it is suspended serves its next driver when it is resumed") {
  test::BlkRig rig;
  rig.device->suspend();
  rig.reactor->wait(rig.device->reset());
  REQUIRE(rig.device->acknowledge(kRingFeatures | kBlkFlush));
  rig.reactor->wait(rig.device->negotiate());
  REQUIRE(rig.device->start_queue(0, rig.queue.layout()).empty());
  TestRequest request(rig.ram, 512);
  rig.start(request, kBlkTypeIn, 3);
  CHECK(rig.queue.used_waiting() == 0);
  rig.device->resume();
  rig.settle();
  CHECK(rig.queue.used_waiting() == 1);
  CHECK(request.status() == kBlkStatusOk);
}

}  // namespace
}  // namespace spindle::virtio
