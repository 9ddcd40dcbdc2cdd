// Two vCPUs, an IDE and a virtio disk on one reactor thread over real files, both busy and every read
// verified, while the write caches of both are toggled all the time. The guest test "stress" does the same
// with a real kernel; this one is for ThreadSanitizer. SPINDLE_STRESS_SECONDS sets how long (default 3).
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "block/protocols/file_node.h"
#include "block/test_support/environment.h"
#include "devices/ide/test_driver.h"
#include "devices/virtio/blk.h"
#include "devices/virtio/pci_transport.h"
#include "devices/virtio/test_driver.h"
#include "devices/virtio/test_machine.h"

namespace spindle {
namespace {

constexpr uint64_t kDiskBytes = 1 << 20;
constexpr uint32_t kBlock = 4096;
constexpr std::chrono::seconds kPatience{20};

std::chrono::seconds duration() {
  const char* text = std::getenv("SPINDLE_STRESS_SECONDS");
  return std::chrono::seconds(text ? std::max(1, std::atoi(text)) : 3);
}

/// Interrupts that can be waited for, and doorbells that are eventfds as under KVM.
class Machine final : public MessageRouter, public InterruptLine, public DoorbellBinder {
 public:
  void route(unsigned, uint64_t, uint32_t) override {}
  void signal(unsigned) override {
    {
      std::lock_guard lock(mutex_);
      ++messages_;
    }
    arrived_.notify_all();
  }
  void set_level(bool) override {}
  bool bind(uint64_t, unsigned, int fd) override {
    doorbell_ = fd;
    return true;
  }
  void unbind(uint64_t, unsigned, int) override { doorbell_ = -1; }

  void ring() {
    const uint64_t one = 1;
    if (::write(doorbell_, &one, sizeof one) != sizeof one) std::abort();
  }
  uint64_t messages() {
    std::lock_guard lock(mutex_);
    return messages_;
  }
  /// False if none came after `seen`: the interrupt was lost.
  bool wait_beyond(uint64_t seen) {
    std::unique_lock lock(mutex_);
    return arrived_.wait_for(lock, kPatience, [&] { return messages_ > seen; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  uint64_t messages_ = 0;
  std::atomic<int> doorbell_{-1};
};

struct Medium {
  Medium(ReactorThread& reactor, const std::string& path, const char* id) {
    node = reactor.call([&]() -> Task<std::shared_ptr<Node>> {
      auto opened = FileNode::open(reactor.reactor(), {.path = path});
      if (!opened) std::abort();
      co_return std::move(*opened);
    });
    disk = std::make_shared<Disk>(node, DiskOptions{.id = id});
  }
  std::shared_ptr<Node> node;
  std::shared_ptr<Disk> disk;
};

void check_counters(const Disk& disk) {
  const DiskCounters& c = disk.counters();
  CHECK(c.errors.value() == 0);
  CHECK(c.cache_toggles.value() > 0);
  CHECK(c.flush_requests.value() + c.flushes_writethrough.value() + c.flushes_toggle.value() +
            c.flushes_background.value() ==
        c.flushes_issued.value() + c.flushes_elided.value() + c.flushes_coalesced.value() +
            c.flushes_failed.value());
}

// vCPU 0: libata's way through the IDE registers, with SET FEATURES 02h and 82h in between.
uint64_t run_ide(ide::test::HostDriver& host, std::vector<uint8_t>& ram, const std::atomic<bool>& stop,
                 std::atomic<unsigned>& failures) {
  constexpr uint32_t kBuffer = 0x20000;
  std::mt19937 random(1);
  std::map<uint64_t, uint8_t> written;
  uint64_t rounds = 0;
  for (; !stop; ++rounds) {
    const uint64_t lba = random() % (kDiskBytes / kBlock) * (kBlock / 512);
    const auto value = static_cast<uint8_t>(random());
    std::fill_n(ram.begin() + kBuffer, kBlock, value);
    if (host.dma({.opcode = 0x35, .count = 8, .lba = lba, .ext = true}, false, kBuffer, kBlock).opcode & 1)
      ++failures;
    written[lba] = value;
    const auto& [at, expected] = *std::next(written.begin(), static_cast<long>(random() % written.size()));
    if (host.dma({.opcode = 0x25, .count = 8, .lba = at, .ext = true}, true, kBuffer, kBlock).opcode & 1)
      ++failures;
    for (uint32_t i = 0; i < kBlock; ++i) failures += ram[kBuffer + i] != expected;
    if (rounds % 4 == 0) {
      const uint16_t feature = rounds % 8 == 0 ? 0x82 : 0x02;
      if (host.non_data({.opcode = 0xef, .features = feature}).opcode & 1) ++failures;
    }
    if (rounds % 16 == 3 && host.non_data({.opcode = 0xea, .ext = true}).opcode & 1) ++failures;
  }
  return rounds;
}

// vCPU 1: eight virtio requests at a time; half of the blocks are written, then all are read back.
uint64_t run_virtio(Machine& machine, virtio::test::TestRam& ram, virtio::test::TestQueue& queue,
                    const std::atomic<bool>& stop, std::atomic<unsigned>& failures) {
  using virtio::test::TestRequest;
  constexpr unsigned kDepth = 8;
  std::vector<TestRequest> requests;
  for (unsigned i = 0; i < kDepth; ++i) requests.emplace_back(ram, kBlock);
  std::vector<uint8_t> expected(kDiskBytes / kBlock);
  std::mt19937 random(2);
  const auto wait_for = [&](unsigned count) {
    while (count > 0) {
      const uint64_t seen = machine.messages();
      queue.want_interrupt();
      if (queue.used_waiting() == 0 && !machine.wait_beyond(seen)) {
        ++failures;
        return;
      }
      while (queue.take()) --count;
    }
  };
  uint64_t rounds = 0;
  for (; !stop && failures == 0; ++rounds) {
    const uint64_t first = random() % (kDiskBytes / kBlock - kDepth);
    for (const uint32_t type : {virtio::kBlkTypeOut, virtio::kBlkTypeIn}) {
      for (unsigned i = 0; i < kDepth; ++i) {
        if (type == virtio::kBlkTypeOut) {
          expected[first + i] = static_cast<uint8_t>(random());
          std::ranges::fill(requests[i].data(), expected[first + i]);
        }
        requests[i].fill(type, (first + i) * kBlock / 512);
        queue.add(requests[i].segments(type));
      }
      if (queue.publish()) machine.ring();
      wait_for(kDepth);
      for (unsigned i = 0; i < kDepth; ++i) {
        failures += requests[i].status() != virtio::kBlkStatusOk;
        for (uint8_t byte : requests[i].data()) failures += byte != expected[first + i];
      }
    }
    if (rounds % 4 == 1) {
      requests[0].fill(virtio::kBlkTypeFlush, 0);
      queue.add(requests[0].bare_segments());
      if (queue.publish()) machine.ring();
      wait_for(1);
      failures += requests[0].status() != virtio::kBlkStatusOk;
    }
  }
  return rounds;
}

TEST_CASE("two vCPUs, both disks busy and verified while their caches are toggled all the time") {
  test::TempDir directory(std::filesystem::exists("/dev/shm") ? "/dev/shm"
                                                              : std::filesystem::temp_directory_path());
  REQUIRE(directory.ok());
  auto reactor = std::move(*ReactorThread::start("two-vcpus"));
  Medium ide_medium(*reactor, directory.file("ide.img", kDiskBytes), "ide");
  Medium virtio_medium(*reactor, directory.file("virtio.img", kDiskBytes), "virtio");

  std::vector<uint8_t> ide_ram(1 << 20);
  const GuestMemory ide_memory({{.guest_address = 0, .size = ide_ram.size(), .host = ide_ram.data()}});
  ide::test::TestLine lines[2];
  ide::PiixIde ide(ide_memory, reactor->reactor(), {&lines[0], &lines[1]});
  REQUIRE(ide.attach(0, 0, ide_medium.disk));
  ide.assign_bar(ide::kBusMasterBar, 0xc000);
  ide.write_config(pci::kCommand, 2, pci::kCommandIo | pci::kCommandBusMaster);
  ide::test::HostDriver host(ide, 0, lines[0], ide_ram);

  Machine machine;
  virtio::test::TestRam ram;
  auto blk = std::move(*virtio::VirtioBlk::create(*virtio_medium.disk, ram.memory(), {.serial = "two"}));
  auto function =
      std::move(*virtio::PciTransport::create(*blk, reactor->reactor(), {machine, machine, machine}, 1, 0));
  virtio::test::PciDriver driver(*function);
  virtio::test::TestQueue queue(ram, 64, true);
  driver.map(0x8'0000'0000);
  driver.set_config(driver.msix.capability + 2, 2, pci::kMsixEnable);
  driver.set_vector(1, 0x51, false);
  REQUIRE(driver.negotiate(virtio::kFeatureVersion1 | virtio::kFeatureRingEventIdx | virtio::kBlkFlush |
                           virtio::kBlkConfigWce));
  REQUIRE(driver.set_queue(0, queue.layout(), 1));
  driver.add_status(virtio::kStatusDriverOk);

  std::atomic<bool> stop{false};
  std::atomic<unsigned> failures{0};
  uint64_t ide_rounds = 0, virtio_rounds = 0, toggles = 0;
  std::thread vcpu0([&] { ide_rounds = run_ide(host, ide_ram, stop, failures); });
  std::thread vcpu1([&] { virtio_rounds = run_virtio(machine, ram, queue, stop, failures); });
  const auto end = std::chrono::steady_clock::now() + duration();
  for (; std::chrono::steady_clock::now() < end; ++toggles) {
    if (auto parked = driver.set_writeback(toggles & 1)) {
      while (!parked->wait()) continue;
    }
    failures += driver.writeback() != (toggles & 1);
  }
  stop = true;
  vcpu0.join();
  vcpu1.join();

  CHECK(failures == 0);
  CHECK(ide_rounds > 0);
  CHECK(virtio_rounds > 0);
  CHECK(toggles > 1);
  MESSAGE(ide_rounds, " IDE rounds, ", virtio_rounds, " virtio rounds, ", toggles, " virtio toggles");
  reactor->call([&] { return function->stop(); });
  function.reset();
  blk.reset();
  reactor->call([&] { return ide.drain(); });
  for (Medium* medium : {&ide_medium, &virtio_medium}) {
    check_counters(*medium->disk);
    CHECK(reactor->call([&] { return medium->disk->close(); }).has_value());
    medium->disk.reset();
    medium->node.reset();
  }
}

}  // namespace
}  // namespace spindle
