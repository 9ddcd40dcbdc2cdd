// A virtio-blk device with a driver, without PCI, on a reactor that runs on the test's thread.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "devices/test_support/memory_node.h"
#include "devices/virtio/blk.h"
#include "devices/virtio/test_driver.h"

namespace spindle::virtio::test {

using spindle::test::MemoryNode;
using Op = MemoryNode::Kind;

inline constexpr uint64_t kDiskBytes = 1 << 20;
inline constexpr uint64_t kRingFeatures = kRingKind | kFeatureRingIndirectDesc | kFeatureRingEventIdx;

struct BlkRig {
  explicit BlkRig(uint64_t blk_features = kBlkFlush | kBlkConfigWce, CacheMode cache = CacheMode::Writeback,
                  bool read_only = false, uint32_t queue_size = 64, bool unmap = false)
      : reactor(*Reactor::create()),
        node(std::make_shared<MemoryNode>(*reactor, kDiskBytes)),
        disk(node, DiskOptions{.id = "disk0", .cache = cache, .read_only = read_only, .discard = unmap}),
        device(*VirtioBlk::create(disk, ram.memory(),
                                  BlkOptions{.serial = "serial-number-0123456789", .packed = kPackedRings})),
        queue(ram, queue_size, true) {
    std::vector<uint8_t> pattern(kDiskBytes);
    for (uint64_t i = 0; i < kDiskBytes; ++i) pattern[i] = static_cast<uint8_t>(i * 7 + i / 512);
    node->put(0, pattern);
    device->connect(transport);
    REQUIRE(device->acknowledge(kRingFeatures | blk_features));
    reactor->wait(device->negotiate());
    REQUIRE(device->start_queue(0, queue.layout()).empty());
  }
  ~BlkRig() {
    for (auto op : {Op::Read, Op::Write, Op::Zeroes, Op::Discard, Op::Flush}) node->release(op);
    reactor->wait(device->reset());
  }

  // Lets everything happen that needs no release. The reactor has no end but quiescence: nothing here is done
  // by the kernel, so a few turns are as good as many.
  void settle() {
    for (int turns = 0; turns < 20; ++turns) {
      bool turned = false;
      reactor->post([&] { turned = true; });
      reactor->run_until([&] { return turned; });
    }
  }
  void kick() {
    queue.publish();
    device->notify(0);
  }
  /// Adds a request without waiting for it.
  void start(TestRequest& request, uint32_t type, uint64_t sector) {
    request.fill(type, sector);
    if (type == kBlkTypeFlush) {
      REQUIRE(queue.add(request.bare_segments()));
    } else {
      REQUIRE(queue.add(request.segments(type)));
    }
    kick();
    settle();
  }
  /// The request's status; `length` is what the used element said.
  uint8_t run(TestRequest& request, uint32_t type, uint64_t sector) {
    start(request, type, sector);
    const auto used = queue.take();
    REQUIRE(used);
    length = used->length;
    return request.status();
  }
  Result<> toggle(uint8_t value) {
    const uint8_t data[] = {value};
    return reactor->wait(device->write_config(kBlkConfigWriteback, data));
  }
  BlkConfig config() {
    BlkConfig result;
    device->read_config(0, {reinterpret_cast<uint8_t*>(&result), sizeof result});
    return result;
  }

  std::unique_ptr<Reactor> reactor;
  std::shared_ptr<MemoryNode> node;
  Disk disk;
  TestRam ram;
  TestTransport transport;
  std::unique_ptr<VirtioBlk> device;
  TestQueue queue;
  uint32_t length = 0;
};

}  // namespace spindle::virtio::test
