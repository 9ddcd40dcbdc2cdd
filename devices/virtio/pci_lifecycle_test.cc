#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "devices/virtio/pci_test_rig.h"
#include "devices/virtio/pci_transport.h"

namespace spindle::virtio {
namespace {

using test::kBarAddress;
using test::kDiskBytes;
using test::kQueueMessage;
using test::kWanted;
using test::MemoryNode;
using test::Op;
using test::PciDriver;
using test::TestMachine;
using test::TestQueue;
using test::TestRam;
using test::TestRequest;
using Rig = test::PciRig;

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

TEST_CASE("configuration writes that nobody waits for are bounded, and a reset drops those that wait") {
  Rig rig;
  rig.start();
  TestRequest request(rig.ram, 512);
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusOk);
  const unsigned window = rig.driver.structure(kPciCapPci).capability;
  rig.driver.set_config(window + 4, 1, 0);
  rig.driver.set_config(window + 8, 4, rig.driver.structure(kPciCapDevice).offset + kBlkConfigWriteback);
  rig.driver.set_config(window + 12, 4, 1);
  const auto toggle = [&](unsigned times) {  // off, on, off...
    for (unsigned i = 0; i < times; ++i) rig.driver.set_config(window + 16, 1, i % 2);
  };
  const auto toggles = [&] { return rig.disk.counters().cache_toggles.value(); };

  rig.node->hold(Op::Flush);
  toggle(1000);
  CHECK(rig.driver.set_writeback(0) == nullptr);  // ignored too
  rig.settle();
  CHECK(rig.node->held(Op::Flush) == 1);
  CHECK(rig.driver.writeback() == 1);
  rig.node->release(Op::Flush);
  rig.settle();
  CHECK(toggles() == CommonConfig::kConfigWrites);
  CHECK(rig.driver.writeback() == 1);

  // There is room again.
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusOk);
  rig.node->hold(Op::Flush);
  toggle(8);
  const auto parked = rig.driver.set_writeback(0);
  REQUIRE(parked);
  rig.settle();
  CHECK_FALSE(parked->finished());
  rig.driver.set_status(0);
  rig.node->release(Op::Flush);
  rig.settle();
  CHECK(parked->finished());
  CHECK(rig.driver.status() == 0);
  CHECK(rig.driver.writeback() == 1);
  // The one that had begun, and the revert.
  CHECK(toggles() == CommonConfig::kConfigWrites + 2);
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
  REQUIRE(rig.driver.negotiate(test::kRingKind | kBlkConfigWce));
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

TEST_CASE("stop waits for what is in flight, and is no reset: mode and counters stay the guest's") {
  for (CacheMode cache : {CacheMode::Writeback, CacheMode::Writethrough}) {
    CAPTURE(to_string(cache));
    Rig rig(cache);
    rig.start();
    const uint8_t chosen = !starts_with_write_cache(cache);
    const auto parked = rig.driver.set_writeback(chosen);
    TestRequest write(rig.ram, 512), read(rig.ram, 512);
    CHECK(rig.run(write, kBlkTypeOut, 0) == kBlkStatusOk);
    const std::size_t flushes = rig.node->count(Op::Flush);
    rig.node->hold(Op::Read);
    rig.begin(read, kBlkTypeIn, 0);
    bool ended = false;
    spawn(rig.function->stop(), [&] { ended = true; });
    rig.settle();
    CHECK_FALSE(ended);
    rig.node->release(Op::Read);
    rig.settle();
    CHECK(ended);
    CHECK(read.status() == kBlkStatusOk);
    CHECK(rig.device->in_flight() == 0);
    CHECK_FALSE(rig.queue.take());
    CHECK(rig.disk.write_cache() == (chosen == 1));
    CHECK(rig.disk.counters().cache_toggles.value() == 1);
    CHECK(rig.node->count(Op::Flush) == flushes);
    // The guest comes too late.
    rig.driver.set_status(0);
    CHECK(rig.driver.set_writeback(!chosen) == nullptr);
    rig.settle();
    CHECK(rig.disk.counters().cache_toggles.value() == 1);
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
  auto device =
      *VirtioBlk::create(disk, ram.memory(), BlkOptions{.serial = "s", .packed = test::kPackedRings});
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
