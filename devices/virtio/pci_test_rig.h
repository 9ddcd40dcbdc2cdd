// A virtio-blk PCI function with a machine and a driver, on a reactor that runs on the test's thread.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "devices/test_support/memory_node.h"
#include "devices/virtio/blk.h"
#include "devices/virtio/pci_transport.h"
#include "devices/virtio/test_driver.h"
#include "devices/virtio/test_machine.h"

namespace spindle::virtio::test {

using spindle::test::MemoryNode;
using Op = MemoryNode::Kind;

inline constexpr uint64_t kDiskBytes = 1 << 20;
inline constexpr uint64_t kBarAddress = 0x8'0000'0000;
inline constexpr uint64_t kWanted =
    kRingKind | kFeatureRingIndirectDesc | kFeatureRingEventIdx | kBlkFlush | kBlkConfigWce;
inline constexpr uint32_t kQueueMessage = 0x51, kConfigMessage = 0x52;

struct PciRig {
  explicit PciRig(CacheMode cache = CacheMode::Writeback, unsigned queues = 1)
      : reactor(*Reactor::create()),
        node(std::make_shared<MemoryNode>(*reactor, kDiskBytes)),
        disk(node, DiskOptions{.id = "disk0", .cache = cache}),
        device(*VirtioBlk::create(disk, ram.memory(),
                                  BlkOptions{.serial = "s", .queues = queues, .packed = kPackedRings})),
        function(*PciTransport::create(
            *device, *reactor,
            {machine, machine, machine, [this](std::string_view reason) { complaints.emplace_back(reason); }},
            1, 0)),
        driver(*function),
        queue(ram, 64, true) {
    driver.map(kBarAddress);
  }
  ~PciRig() {
    for (auto op : {Op::Read, Op::Write, Op::Flush}) node->release(op);
    reactor->wait(function->stop());
    function.reset();
    CHECK(machine.bad_unbinds() == 0);
    CHECK(machine.doorbells().empty());
  }

  void settle() {
    for (int turns = 0; turns < 20; ++turns) {
      bool turned = false;
      reactor->post([&] { turned = true; });
      reactor->run_until([&] { return turned; });
    }
  }
  void enable_msix() {
    driver.set_config(driver.msix.capability + 2, 2, pci::kMsixEnable);
    driver.set_vector(0, kConfigMessage, false);
    driver.set_vector(1, kQueueMessage, false);
    driver.set_common(common::kConfigMsixVector, 2, 0);
  }
  void start(uint16_t vector = kNoVector, uint64_t features = kWanted) {
    REQUIRE(driver.negotiate(features));
    REQUIRE(driver.set_queue(0, queue.layout(), vector));
    driver.add_status(kStatusDriverOk);
    settle();
  }
  void begin(TestRequest& request, uint32_t type, uint64_t sector) { begin(0, queue, request, type, sector); }
  uint8_t run(TestRequest& request, uint32_t type, uint64_t sector) {
    return run(0, queue, request, type, sector);
  }
  /// The same on any queue: `on` is what the driver has set up as number `index`.
  void begin(uint16_t index, TestQueue& on, TestRequest& request, uint32_t type, uint64_t sector) {
    request.fill(type, sector);
    on.want_interrupt();
    if (type == kBlkTypeFlush) {
      REQUIRE(on.add(request.bare_segments()));
    } else {
      REQUIRE(on.add(request.segments(type)));
    }
    on.publish();
    driver.write(driver.notify_offset(index), 2, index);
    settle();
  }
  uint8_t run(uint16_t index, TestQueue& on, TestRequest& request, uint32_t type, uint64_t sector) {
    begin(index, on, request, type, sector);
    // A doorbell goes through the kernel, which on a loaded machine takes more turns than settle() has.
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    bool taken = on.take().has_value();
    while (!taken && std::chrono::steady_clock::now() < patience) {
      settle();
      taken = on.take().has_value();
    }
    REQUIRE(taken);
    return request.status();
  }

  std::unique_ptr<Reactor> reactor;
  std::shared_ptr<MemoryNode> node;
  Disk disk;
  TestRam ram;
  TestMachine machine;
  std::vector<std::string> complaints;
  std::unique_ptr<VirtioBlk> device;
  std::unique_ptr<PciTransport> function;
  PciDriver driver;
  TestQueue queue;
};

}  // namespace spindle::virtio::test
