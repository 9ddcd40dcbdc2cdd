#include "devices/virtio/pci_transport.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "devices/test_support/memory_node.h"
#include "devices/virtio/blk.h"
#include "devices/virtio/test_driver.h"
#include "devices/virtio/test_machine.h"

namespace spindle::virtio {
namespace {

using spindle::test::MemoryNode;
using test::PciDriver;
using test::TestMachine;
using test::TestQueue;
using test::TestRam;
using test::TestRequest;
using Op = MemoryNode::Kind;

constexpr uint64_t kDiskBytes = 1 << 20;
constexpr uint64_t kBarAddress = 0x8'0000'0000;
constexpr uint64_t kWanted =
    kFeatureVersion1 | kFeatureRingIndirectDesc | kFeatureRingEventIdx | kBlkFlush | kBlkConfigWce;
constexpr uint32_t kQueueMessage = 0x51, kConfigMessage = 0x52;

struct Rig {
  explicit Rig(CacheMode cache = CacheMode::Writeback)
      : reactor(*Reactor::create()),
        node(std::make_shared<MemoryNode>(*reactor, kDiskBytes)),
        disk(node, DiskOptions{.id = "disk0", .cache = cache}),
        device(*VirtioBlk::create(disk, ram.memory(), BlkOptions{.serial = "s"})),
        function(*PciTransport::create(*device, *reactor, {machine, machine, machine}, 1, 0)),
        driver(*function),
        queue(ram, 64, true) {
    driver.map(kBarAddress);
  }
  ~Rig() {
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
  void begin(TestRequest& request, uint32_t type, uint64_t sector) {
    request.fill(type, sector);
    queue.want_interrupt();
    if (type == kBlkTypeFlush) {
      REQUIRE(queue.add(request.bare_segments()));
    } else {
      REQUIRE(queue.add(request.segments(type)));
    }
    queue.publish();
    driver.write(driver.notify_offset(0), 2, 0);
    settle();
  }
  uint8_t run(TestRequest& request, uint32_t type, uint64_t sector) {
    begin(request, type, sector);
    REQUIRE(queue.take());
    return request.status();
  }

  std::unique_ptr<Reactor> reactor;
  std::shared_ptr<MemoryNode> node;
  Disk disk;
  TestRam ram;
  TestMachine machine;
  std::unique_ptr<VirtioBlk> device;
  std::unique_ptr<PciTransport> function;
  PciDriver driver;
  TestQueue queue;
};

TEST_CASE("the function says what it is and where its structures are") {
  Rig rig;
  CHECK(rig.driver.config(pci::kVendorId, 4) == 0x10421af4);
  CHECK(rig.driver.config(pci::kRevisionId, 4) == 0x01000001);
  CHECK(rig.driver.config(pci::kSubsystemVendorId, 2) == 0x1af4);
  CHECK(rig.driver.config(pci::kSubsystemId, 2) >= 0x40);
  CHECK(rig.driver.config(pci::kInterruptPin, 1) == 1);
  CHECK((rig.driver.config(pci::kBar0, 4) & 0xf) == 4);  // 64 bits, memory
  const uint64_t size = rig.function->bar_size(0);
  for (uint8_t type : {kPciCapCommon, kPciCapNotify, kPciCapIsr, kPciCapDevice}) {
    const auto& structure = rig.driver.structure(type);
    CAPTURE(int(type));
    REQUIRE(structure.capability != 0);
    CHECK(rig.driver.config(structure.capability + 4, 1) == 0);
    CHECK(structure.length > 0);
    CHECK(structure.offset + structure.length <= size);
    CHECK(structure.offset % 4 == 0);
  }
  CHECK(rig.driver.structure(kPciCapCommon).length >= 56);
  CHECK(rig.driver.structure(kPciCapPci).capability != 0);
  REQUIRE(rig.driver.msix.capability != 0);
  CHECK(rig.driver.config(rig.driver.msix.capability + 2, 2) == 1);  // two vectors
  CHECK(rig.driver.offered() == rig.device->features());
  CHECK(rig.driver.common(common::kNumQueues, 2) == 1);
  rig.driver.set_common(common::kDeviceFeatureSelect, 4, 2);
  CHECK(rig.driver.common(common::kDeviceFeature, 4) == 0);
}

TEST_CASE("the device status follows the driver as far as it may go") {
  Rig rig;
  PciDriver& driver = rig.driver;
  CHECK(driver.status() == 0);
  driver.set_status(kStatusAcknowledge | kStatusDriver);
  CHECK(driver.status() == (kStatusAcknowledge | kStatusDriver));
  driver.add_status(kStatusDriverOk);  // before FEATURES_OK
  CHECK(driver.status() == (kStatusAcknowledge | kStatusDriver));
  driver.add_status(kStatusNeedsReset);  // not the driver's to set
  CHECK(driver.status() == (kStatusAcknowledge | kStatusDriver));
  CHECK_FALSE(driver.negotiate(kWanted & ~kFeatureVersion1));
  CHECK_FALSE(driver.negotiate(kWanted | kBlkReadOnly));
  CHECK(driver.negotiate(kWanted));
  // Acknowledged late: nothing changes any more.
  driver.set_common(common::kDriverFeatureSelect, 4, 0);
  driver.set_common(common::kDriverFeature, 4, 0);
  CHECK(driver.common(common::kDriverFeature, 4) == static_cast<uint32_t>(kWanted));
  driver.set_status(kStatusDriverOk);  // bits are only added
  CHECK(driver.status() == (kStatusAcknowledge | kStatusDriver | kStatusFeaturesOk | kStatusDriverOk));
  driver.add_status(kStatusFailed);
  CHECK((driver.status() & kStatusFailed));
  driver.set_status(0);
  rig.settle();
  CHECK(driver.status() == 0);
}

TEST_CASE("a feature bit beyond those that exist is refused") {
  Rig rig;
  rig.driver.set_common(common::kDriverFeatureSelect, 4, 2);
  rig.driver.set_common(common::kDriverFeature, 4, 1);
  CHECK_FALSE(rig.driver.negotiate(kWanted));
  rig.driver.set_status(0);
  CHECK(rig.driver.negotiate(kWanted));
}

TEST_CASE("queue registers: what does not exist reads 0, what is wrong is not enabled") {
  Rig rig;
  PciDriver& driver = rig.driver;
  REQUIRE(driver.negotiate(kWanted));
  driver.set_common(common::kQueueSelect, 2, 1);
  CHECK(driver.common(common::kQueueSize, 2) == 0);
  driver.set_common(common::kQueueSize, 2, 8);
  driver.set_common(common::kQueueEnable, 2, 1);
  CHECK(driver.common(common::kQueueSize, 2) == 0);
  CHECK(driver.common(common::kQueueEnable, 2) == 0);
  driver.set_common(common::kQueueSelect, 2, 0);
  CHECK(driver.common(common::kQueueSize, 2) == 256);
  CHECK(driver.common(common::kQueueMsixVector, 2) == kNoVector);
  driver.set_common(common::kQueueMsixVector, 2, 1);
  CHECK(driver.common(common::kQueueMsixVector, 2) == 1);
  driver.set_common(common::kQueueMsixVector, 2, 2);
  CHECK(driver.common(common::kQueueMsixVector, 2) == kNoVector);
  driver.set_common(common::kConfigMsixVector, 2, 2);
  CHECK(driver.common(common::kConfigMsixVector, 2) == kNoVector);
  // 64-bit registers, whole and in halves.
  driver.set_common(common::kQueueDesc, 8, 0x1122334455667788);
  CHECK(driver.common(common::kQueueDesc, 8) == 0x1122334455667788);
  driver.set_common(common::kQueueDesc + 4, 4, 0xaabbccdd);
  CHECK(driver.common(common::kQueueDesc, 8) == 0xaabbccdd55667788);
  driver.set_common(common::kQueueDesc, 4, 0);
  driver.set_common(common::kQueueDesc + 2, 2, 0xffff);  // no field
  CHECK(driver.common(common::kQueueDesc, 8) == 0xaabbccdd00000000);

  for (uint32_t size : {0u, 3u, 512u, 0x8000u}) {
    Rig wrong;
    REQUIRE(wrong.driver.negotiate(kWanted));
    QueueLayout layout = wrong.queue.layout();
    layout.size = size;
    CHECK_FALSE(wrong.driver.set_queue(0, layout));
    CHECK((wrong.driver.status() & kStatusNeedsReset));
    CHECK_FALSE(wrong.function->needs_reset_reason().empty());
  }
  for (int area = 0; area < 3; ++area) {
    Rig wrong;
    REQUIRE(wrong.driver.negotiate(kWanted));
    QueueLayout layout = wrong.queue.layout();
    (area == 0 ? layout.descriptors : area == 1 ? layout.driver_area : layout.device_area) = wrong.ram.end();
    CHECK_FALSE(wrong.driver.set_queue(0, layout));
    CHECK((wrong.driver.status() & kStatusNeedsReset));
    // A reset makes it good again.
    wrong.driver.set_status(0);
    wrong.settle();
    CHECK(wrong.driver.status() == 0);
    wrong.start();
    TestRequest request(wrong.ram, 512);
    CHECK(wrong.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
  }
}

TEST_CASE("an enabled queue's registers stay as they are") {
  Rig rig;
  rig.start();
  const uint64_t before = rig.driver.common(common::kQueueDesc, 8);
  rig.driver.set_common(common::kQueueDesc, 8, 0);
  rig.driver.set_common(common::kQueueSize, 2, 2);
  rig.driver.set_common(common::kQueueEnable, 2, 0);
  CHECK(rig.driver.common(common::kQueueDesc, 8) == before);
  CHECK(rig.driver.common(common::kQueueSize, 2) == 64);
  CHECK(rig.driver.common(common::kQueueEnable, 2) == 1);
}

TEST_CASE("requests over PCI with MSI-X, masked and unmasked") {
  Rig rig;
  rig.enable_msix();
  rig.start(1);
  TestRequest request(rig.ram, 512);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
  CHECK(rig.machine.messages(kQueueMessage) == 1);
  CHECK_FALSE(rig.machine.level());
  CHECK(rig.driver.isr() == 0);
  const uint64_t entry = (rig.driver.msix.offset & ~7u) + 16;
  const uint64_t pending = rig.driver.msix.length & ~7u;
  rig.driver.write(entry + 12, 4, 1);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
  CHECK(rig.machine.messages(kQueueMessage) == 1);
  CHECK(rig.driver.read(pending, 4) == 2);
  rig.driver.write(entry + 12, 4, 0);
  CHECK(rig.machine.messages(kQueueMessage) == 2);
  CHECK(rig.driver.read(pending, 4) == 0);
  // No vector: no interrupt, and nothing else happens.
  rig.driver.set_common(common::kQueueSelect, 2, 0);
  rig.driver.set_common(common::kQueueMsixVector, 2, kNoVector);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
  CHECK(rig.machine.messages(kQueueMessage) == 2);
}

TEST_CASE("without MSI-X the pin follows the ISR, which a read clears") {
  Rig rig;
  rig.start();
  TestRequest request(rig.ram, 512);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
  CHECK(rig.machine.level());
  CHECK((rig.driver.config(pci::kStatus, 2) & pci::kStatusInterrupt));
  CHECK(rig.driver.isr() == kIsrQueue);
  CHECK_FALSE(rig.machine.level());
  CHECK_FALSE((rig.driver.config(pci::kStatus, 2) & pci::kStatusInterrupt));
  CHECK(rig.driver.isr() == 0);

  const uint32_t command = rig.driver.config(pci::kCommand, 2);
  rig.driver.set_config(pci::kCommand, 2, command | pci::kCommandInterruptDisable);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
  CHECK_FALSE(rig.machine.level());
  CHECK((rig.driver.config(pci::kStatus, 2) & pci::kStatusInterrupt));
  rig.driver.set_config(pci::kCommand, 2, command);
  CHECK(rig.machine.level());
  rig.driver.set_status(0);  // a reset lowers it
  rig.settle();
  CHECK_FALSE(rig.machine.level());
}

TEST_CASE("a broken ring sets NEEDS_RESET and interrupts, by message or pin") {
  for (bool msix : {false, true}) {
    Rig rig;
    if (msix) rig.enable_msix();
    rig.start(msix ? 1 : kNoVector);
    rig.queue.set_available_index(999);
    rig.driver.write(rig.driver.notify_offset(0), 2, 0);
    rig.settle();
    CHECK((rig.driver.status() & kStatusNeedsReset));
    CHECK(rig.machine.messages(kConfigMessage) == (msix ? 1u : 0u));
    CHECK(rig.machine.level() == !msix);
    CHECK(rig.driver.isr() == kIsrConfig);
  }
}

TEST_CASE("doorbells are bound where the BAR is, and follow it") {
  Rig rig;
  const uint64_t at = rig.driver.notify_offset(0);
  REQUIRE(rig.machine.doorbells().size() == 1);
  CHECK(rig.machine.doorbells().begin()->first == kBarAddress + at);
  rig.function->assign_bar(0, 0x9'0000'0000);
  REQUIRE(rig.machine.doorbells().size() == 1);
  CHECK(rig.machine.doorbells().begin()->first == 0x9'0000'0000 + at);
  rig.driver.set_config(pci::kCommand, 2, 0);
  CHECK(rig.machine.doorbells().empty());
  rig.driver.set_config(pci::kCommand, 2, pci::kCommandMemory);
  CHECK(rig.machine.doorbells().size() == 1);

  // What KVM does with a write there.
  rig.start();
  TestRequest request(rig.ram, 512);
  request.fill(kBlkTypeIn, 0);
  rig.queue.add(request.segments(kBlkTypeIn));
  rig.queue.publish();
  eventfd_write(rig.machine.doorbells().begin()->second.second, 1);
  rig.settle();
  CHECK(rig.queue.take());
}

TEST_CASE("a machine without doorbells sends the writes instead") {
  Rig rig;
  rig.machine.refuse_doorbells();
  rig.function->assign_bar(0, 0x9'0000'0000);
  CHECK(rig.machine.doorbells().empty());
  rig.start();
  TestRequest request(rig.ram, 512);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
  rig.driver.write(rig.driver.structure(kPciCapNotify).offset + 4, 2, 1);  // no such queue
  rig.settle();
  CHECK((rig.driver.status() & kStatusNeedsReset) == 0);
}

TEST_CASE("a notification before DRIVER_OK is not lost") {
  Rig rig;
  REQUIRE(rig.driver.negotiate(kWanted));
  REQUIRE(rig.driver.set_queue(0, rig.queue.layout()));
  TestRequest request(rig.ram, 512);
  rig.begin(request, kBlkTypeIn, 0);
  CHECK_FALSE(rig.queue.take());
  rig.driver.add_status(kStatusDriverOk);
  rig.settle();
  CHECK(rig.queue.take());
}

TEST_CASE("D3: the vCPU that turns the cache off is parked until the flush has ended") {
  Rig rig;
  rig.start();
  TestRequest request(rig.ram, 512);
  std::ranges::fill(request.data(), uint8_t{4});
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusOk);
  rig.node->hold(Op::Flush);
  const auto parked = rig.driver.set_writeback(0);
  REQUIRE(parked);
  rig.settle();
  CHECK_FALSE(parked->finished());
  parked->kick();
  CHECK_FALSE(parked->wait());  // the machine wants the vCPU elsewhere; it comes back later
  // Another vCPU is served: configuration, status, and the queue.
  CHECK(rig.driver.writeback() == 1);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
  rig.node->release(Op::Flush);
  rig.settle();
  CHECK(parked->wait());
  CHECK(rig.driver.writeback() == 0);
  CHECK(rig.node->durable(0, 1)[0] == 4);

  const auto on = rig.driver.set_writeback(1);
  rig.settle();
  CHECK((!on || on->finished()));
  CHECK(rig.driver.writeback() == 1);
}

TEST_CASE("D3: if that flush fails the vCPU goes on and reads back 1") {
  Rig rig;
  rig.start();
  TestRequest request(rig.ram, 512);
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusOk);
  rig.node->fail(Op::Flush, 0, kDiskBytes, ErrorKind::Io, 1);
  const auto parked = rig.driver.set_writeback(0);
  REQUIRE(parked);
  rig.settle();
  CHECK(parked->finished());
  CHECK(rig.driver.writeback() == 1);
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusIoError);
}

TEST_CASE("configuration writes of odd sizes, at odd places and at odd times do nothing") {
  Rig rig;
  const uint64_t base = rig.driver.structure(kPciCapDevice).offset;
  CHECK(rig.driver.set_writeback(0) == nullptr);  // before FEATURES_OK
  rig.start();
  for (unsigned width : {2u, 4u, 8u}) {
    CHECK(rig.driver.write(base + kBlkConfigWriteback, width, 0) == nullptr);
    CHECK(rig.driver.write(base + kBlkConfigWriteback - width + 1, width, 0) == nullptr);
  }
  for (uint64_t offset = 0; offset < 0x800; ++offset) {
    if (offset != kBlkConfigWriteback) CHECK(rig.driver.write(base + offset, 1, 0) == nullptr);
  }
  rig.settle();
  CHECK(rig.driver.writeback() == 1);
  CHECK(rig.disk.counters().cache_toggles.value() == 0);
}

TEST_CASE("queues start after the flush that write-through at FEATURES_OK needs") {
  Rig rig;
  rig.start();
  TestRequest request(rig.ram, 512);
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusOk);
  rig.driver.set_status(0);
  rig.settle();
  REQUIRE(rig.driver.status() == 0);
  rig.node->hold(Op::Flush);
  TestQueue queue(rig.ram, 16, true);
  REQUIRE(rig.driver.negotiate(kFeatureVersion1 | kBlkConfigWce));
  CHECK(rig.driver.writeback() == 0);
  REQUIRE(rig.driver.set_queue(0, queue.layout()));
  rig.driver.add_status(kStatusDriverOk);
  request.fill(kBlkTypeIn, 0);
  queue.add(request.segments(kBlkTypeIn));
  queue.publish();
  rig.driver.write(rig.driver.notify_offset(0), 2, 0);
  rig.settle();
  CHECK_FALSE(queue.take());
  rig.node->release(Op::Flush);
  rig.settle();
  CHECK(queue.take());
}

TEST_CASE("the status reads 0 only when nothing is in flight and the revert has been flushed") {
  Rig rig(CacheMode::Writethrough);
  rig.start();
  const auto on = rig.driver.set_writeback(1);
  rig.settle();
  TestRequest write(rig.ram, 512), read(rig.ram, 512);
  std::ranges::fill(write.data(), uint8_t{0x33});
  rig.node->hold(Op::Write);
  rig.node->hold(Op::Flush);
  rig.begin(write, kBlkTypeOut, 7);
  rig.driver.set_status(0);
  rig.settle();
  CHECK(rig.driver.status() != 0);
  // What the driver does meanwhile has no effect.
  rig.driver.set_status(kStatusAcknowledge | kStatusFailed);
  CHECK_FALSE((rig.driver.status() & kStatusFailed));
  CHECK(rig.driver.set_writeback(0) == nullptr);
  rig.driver.set_status(0);
  rig.node->release(Op::Write);
  rig.settle();
  CHECK(rig.driver.status() != 0);
  CHECK(rig.node->held(Op::Flush) == 1);
  rig.node->release(Op::Flush);
  rig.settle();
  CHECK(rig.driver.status() == 0);
  CHECK(rig.driver.writeback() == 0);
  CHECK(rig.node->durable(7 * 512, 1)[0] == 0x33);
  CHECK(rig.driver.common(common::kQueueEnable, 2) == 0);
  CHECK(rig.driver.common(common::kQueueSize, 2) == 256);

  TestQueue queue(rig.ram, 16, true);
  REQUIRE(rig.driver.negotiate(kWanted));
  REQUIRE(rig.driver.set_queue(0, queue.layout()));
  rig.driver.add_status(kStatusDriverOk);
  rig.settle();
  read.fill(kBlkTypeIn, 7);
  queue.add(read.segments(kBlkTypeIn));
  queue.publish();
  rig.driver.write(rig.driver.notify_offset(0), 2, 0);
  rig.settle();
  CHECK(queue.take());
  CHECK(read.data()[0] == 0x33);
}

TEST_CASE("machine reset: decoding off, vectors masked, the device in its first state") {
  Rig rig;
  rig.enable_msix();
  rig.start(1);
  const auto off = rig.driver.set_writeback(0);
  rig.settle();
  rig.function->reset();
  rig.reactor->wait(rig.function->settle());
  CHECK(rig.function->status() == 0);
  CHECK(rig.function->mappings().empty());
  CHECK(rig.machine.doorbells().empty());
  CHECK(rig.driver.config(rig.driver.msix.capability + 2, 2) == 1);
  rig.driver.map(kBarAddress);
  CHECK(rig.driver.writeback() == 1);
  CHECK(rig.driver.read((rig.driver.msix.offset & ~7u) + 12, 4) == 1);
  TestQueue queue(rig.ram, 16, true);
  REQUIRE(rig.driver.negotiate(kWanted));
  REQUIRE(rig.driver.set_queue(0, queue.layout()));
}

TEST_CASE("the window in configuration space reaches the BAR") {
  Rig rig;
  const unsigned cap = rig.driver.structure(kPciCapPci).capability;
  const auto point = [&](uint32_t bar, uint32_t offset, uint32_t length) {
    rig.driver.set_config(cap + 4, 1, bar);
    rig.driver.set_config(cap + 8, 4, offset);
    rig.driver.set_config(cap + 12, 4, length);
  };
  const uint32_t base = rig.driver.structure(kPciCapCommon).offset;
  point(0, base + common::kDeviceStatus, 1);
  rig.driver.set_config(cap + 16, 1, kStatusAcknowledge);
  CHECK(rig.driver.status() == kStatusAcknowledge);
  CHECK(rig.driver.config(cap + 16, 1) == kStatusAcknowledge);
  point(0, base + common::kQueueSize, 2);
  CHECK(rig.driver.config(cap + 16, 2) == 256);
  point(0, rig.driver.structure(kPciCapDevice).offset, 4);
  CHECK(rig.driver.config(cap + 16, 4) == kDiskBytes / 512);
  // Places where there is nothing.
  point(3, base, 4);
  rig.driver.set_config(cap + 16, 4, 0x12345678);
  CHECK(rig.driver.config(cap + 16, 4) == 0x12345678);
  for (uint32_t length : {0u, 3u, 8u, ~0u}) {
    point(0, base, length);
    rig.driver.config(cap + 16, 4);
    rig.driver.set_config(cap + 16, 4, 0);
  }
  point(0, ~3u, 4);
  rig.driver.set_config(cap + 16, 4, 0);
  rig.driver.config(cap + 16, 4);
  // The ISR read through it has the side effect of any read.
  rig.driver.set_status(0);
  rig.start();
  TestRequest request(rig.ram, 512);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
  CHECK(rig.machine.level());
  point(0, rig.driver.structure(kPciCapIsr).offset, 1);
  CHECK(rig.driver.config(cap + 16, 1) == kIsrQueue);
  CHECK_FALSE(rig.machine.level());
}

TEST_CASE("whatever is written wherever, a reset makes the device usable again") {
  std::mt19937_64 random(99);
  for (int round = 0; round < 60; ++round) {
    Rig rig;
    rig.enable_msix();
    if (random() % 2) rig.start(1);
    for (int i = 0; i < 400; ++i) {
      const unsigned width = 1u << random() % 4;
      // Half of the accesses go to the common configuration, half anywhere.
      const uint64_t offset = random() % 2 ? random() % 64 : random() % 0x4000;
      const uint64_t value = random() % 3 ? random() % 16 : random();
      rig.driver.read(offset, width);
      rig.driver.write(offset, width, value);
      if (random() % 8 == 0) {
        rig.driver.set_config(random() % 256, 1u << random() % 3, static_cast<uint32_t>(random()));
        rig.driver.map(kBarAddress + (random() % 4 << 20));
      }
      if (random() % 16 == 0) rig.settle();
    }
    rig.settle();
    rig.driver.set_config(rig.driver.msix.capability + 2, 2, 0);
    rig.driver.map(kBarAddress);
    rig.driver.set_status(0);
    rig.settle();
    REQUIRE(rig.driver.status() == 0);
    TestQueue queue(rig.ram, 16, true);
    REQUIRE(rig.driver.negotiate(kWanted));
    REQUIRE(rig.driver.set_queue(0, queue.layout()));
    rig.driver.add_status(kStatusDriverOk);
    TestRequest request(rig.ram, 512);
    request.fill(kBlkTypeIn, 0);
    queue.add(request.segments(kBlkTypeIn));
    queue.publish();
    rig.driver.write(rig.driver.notify_offset(0), 2, 0);
    rig.settle();
    REQUIRE(queue.take());
    REQUIRE(request.status() == kBlkStatusOk);
  }
}

// One vCPU drives requests, the other toggles the cache, reads registers, moves the BAR's mapping and masks
// vectors, while the reactor completes. Nothing may be lost, and ThreadSanitizer must have nothing to say.
TEST_CASE("two vCPUs and a reactor") {
  auto thread = ReactorThread::start("virtio");
  REQUIRE(thread);
  Reactor& reactor = (*thread)->reactor();
  auto node = std::make_shared<MemoryNode>(reactor, kDiskBytes);
  Disk disk(node, DiskOptions{.id = "disk0"});
  TestRam ram;
  TestMachine machine;
  auto device = *VirtioBlk::create(disk, ram.memory(), BlkOptions{.serial = "s"});
  auto function = *PciTransport::create(*device, reactor, {machine, machine, machine}, 1, 0);
  PciDriver driver(*function);
  driver.map(kBarAddress);
  driver.set_config(driver.msix.capability + 2, 2, pci::kMsixEnable);
  driver.set_vector(1, kQueueMessage, false);

  constexpr int kRounds = 300;
  std::atomic<bool> done = false;
  for (int life = 0; life < 3; ++life) {
    TestQueue queue(ram, 64, true);
    REQUIRE(driver.negotiate(kWanted));
    REQUIRE(driver.set_queue(0, queue.layout(), 1));
    const uint64_t bell = driver.notify_offset(0);
    driver.add_status(kStatusDriverOk);
    done = false;
    std::jthread other([&] {
      uint8_t value = 0;
      while (!done) {
        if (const auto parked = driver.set_writeback(value)) {
          while (!parked->wait()) {
          }
        }
        value ^= 1;
        driver.set_vector(1, kQueueMessage, true);
        driver.set_vector(1, kQueueMessage, false);
        function->assign_bar(0, kBarAddress + (uint64_t{value} << 20));
        driver.config(pci::kStatus, 2);
        driver.isr();
        (void)driver.status();
      }
    });
    std::vector<TestRequest> requests;
    for (int i = 0; i < 16; ++i) requests.emplace_back(ram, 512);
    int bad = 0;
    for (int round = 0; round < kRounds; ++round) {
      const bool write = round % 2 == 0;
      for (int i = 0; i < 16; ++i) {
        requests[i].fill(write ? kBlkTypeOut : kBlkTypeIn, i);
        if (write) std::ranges::fill(requests[i].data(), static_cast<uint8_t>(round + i));
        queue.add(requests[i].segments(write ? kBlkTypeOut : kBlkTypeIn));
      }
      queue.want_interrupt(16);
      const unsigned before = machine.messages(kQueueMessage);
      queue.publish();
      driver.write(bell, 2, 0);
      // The interrupt must come, unmasked sooner or later by the other vCPU.
      while (machine.messages(kQueueMessage) == before) std::this_thread::yield();
      while (queue.used_waiting() < 16) std::this_thread::yield();
      while (queue.take()) {
      }
      for (int i = 0; i < 16; ++i) {
        bad += requests[i].status() != kBlkStatusOk;
        bad += requests[i].data()[0] != static_cast<uint8_t>(round - !write + i);
      }
    }
    done = true;
    other.join();
    CHECK(bad == 0);
    driver.set_status(0);
    while (driver.status() != 0) std::this_thread::yield();
  }
  (*thread)->call([&] { return function->stop(); });
  function.reset();
  CHECK(machine.bad_unbinds() == 0);
}

}  // namespace
}  // namespace spindle::virtio
