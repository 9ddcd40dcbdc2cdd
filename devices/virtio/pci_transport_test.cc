#include "devices/virtio/pci_transport.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "devices/virtio/pci_test_rig.h"

namespace spindle::virtio {
namespace {

using test::kBarAddress;
using test::kConfigMessage;
using test::kDiskBytes;
using test::kQueueMessage;
using test::kWanted;
using test::PciDriver;
using test::TestQueue;
using test::TestRequest;
using Rig = test::PciRig;

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

  for (uint32_t size : {0u, test::kPackedRings ? 257u : 3u, 512u, 0x8000u}) {
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
    rig.queue.spoil();
    rig.driver.write(rig.driver.notify_offset(0), 2, 0);
    rig.settle();
    CHECK((rig.driver.status() & kStatusNeedsReset));
    CHECK(rig.machine.messages(kConfigMessage) == (msix ? 1u : 0u));
    CHECK(rig.machine.level() == !msix);
    CHECK(rig.driver.isr() == kIsrConfig);
  }
}

TEST_CASE("a resize changes the capacity under a new generation and interrupts, by message or pin") {
  for (bool msix : {false, true}) {
    Rig rig;
    if (msix) rig.enable_msix();
    rig.start(msix ? 1 : kNoVector);
    const auto capacity = [&] {
      uint64_t sectors = 0;
      std::array<uint8_t, 8> bytes{};
      rig.device->read_config(0, bytes);
      std::memcpy(&sectors, bytes.data(), sizeof sectors);
      return sectors;
    };
    const auto generation = rig.driver.common(common::kConfigGeneration, 1);
    REQUIRE(capacity() == kDiskBytes / 512);
    REQUIRE(rig.reactor->wait(rig.disk.resize(2 * kDiskBytes)).has_value());
    rig.device->config_changed();
    CHECK(capacity() == 2 * kDiskBytes / 512);
    CHECK(rig.driver.common(common::kConfigGeneration, 1) != generation);
    CHECK(rig.machine.messages(kConfigMessage) == (msix ? 1u : 0u));
    CHECK(rig.machine.level() == !msix);
    CHECK(rig.driver.isr() == kIsrConfig);
    TestRequest request(rig.ram, 512);
    CHECK(rig.run(request, kBlkTypeIn, 2 * kDiskBytes / 512 - 1) == kBlkStatusOk);
    REQUIRE(rig.reactor->wait(rig.disk.resize(kDiskBytes)).has_value());
    CHECK(rig.run(request, kBlkTypeIn, kDiskBytes / 512) == kBlkStatusIoError);
  }
}

TEST_CASE("before a driver runs a resize interrupts nobody") {
  Rig rig;
  REQUIRE(rig.reactor->wait(rig.disk.resize(2 * kDiskBytes)).has_value());
  rig.device->config_changed();
  CHECK_FALSE(rig.machine.level());
  CHECK(rig.driver.isr() == 0);
}

TEST_CASE("why a device needs a reset is told: once a reset, and no more than ten times") {
  Rig rig;
  for (unsigned life = 0; life < PciTransport::kComplaints + 3; ++life) {
    REQUIRE(rig.driver.negotiate(kWanted));
    QueueLayout layout = rig.queue.layout();
    layout.size = 0;
    for (int again = 0; again < 3; ++again) CHECK_FALSE(rig.driver.set_queue(0, layout));
    CHECK(rig.complaints.size() == std::min(life + 1, PciTransport::kComplaints));
    CHECK(rig.complaints.back() == rig.function->needs_reset_reason());
    rig.driver.set_status(0);
    rig.settle();
    REQUIRE(rig.driver.status() == 0);
  }
}

TEST_CASE("queue_driver and queue_device name the event areas of a packed queue, of any size") {
  auto reactor = *Reactor::create();
  Disk disk(std::make_shared<spindle::test::MemoryNode>(*reactor, kDiskBytes), DiskOptions{.id = "d"});
  test::TestRam ram;
  test::TestMachine machine;
  auto device = *VirtioBlk::create(disk, ram.memory(), BlkOptions{.packed = true});
  auto function = *PciTransport::create(*device, *reactor, {machine, machine, machine}, 1, 0);
  PciDriver driver(*function);
  driver.map(kBarAddress);
  CHECK((driver.offered() & kFeatureRingPacked));
  REQUIRE(driver.negotiate(kFeatureVersion1 | kFeatureRingPacked | kFeatureRingEventIdx));
  TestQueue queue(ram, 100, true, true);
  QueueLayout wrong = queue.layout();
  wrong.driver_area += 2;  // good enough for an available ring
  CHECK_FALSE(driver.set_queue(0, wrong));
  REQUIRE(driver.set_queue(0, queue.layout()));
  CHECK(driver.common(common::kQueueSize, 2) == 100);
  driver.add_status(kStatusDriverOk);
  TestRequest request(ram, 512);
  for (int i = 0; i < 101; ++i) {  // three descriptors each: begins everywhere
    request.fill(kBlkTypeIn, 0);
    queue.want_interrupt();
    REQUIRE(queue.add(request.segments(kBlkTypeIn)));
    queue.publish();
    driver.write(driver.notify_offset(0), 2, 0);
    reactor->run_until([&] { return queue.used_waiting() == 1; });
    REQUIRE(queue.take());
    REQUIRE(request.status() == kBlkStatusOk);
  }
  reactor->wait(function->stop());
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

}  // namespace
}  // namespace spindle::virtio
