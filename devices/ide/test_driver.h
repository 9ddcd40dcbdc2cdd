// A host driver for tests: it programs the controller's registers as Linux's libata does, from the test's own
// thread, while a reactor has a thread of its own.
//
// Waiting is for events only: an interrupt (a condition variable on the line), or registers that change,
// which are polled as a host polls them. A wait that takes absurdly long throws, so a lost interrupt fails a
// test instead of hanging it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "block/disk.h"
#include "block/filters/throttle_node.h"
#include "block/io/reactor.h"
#include "devices/ide/ata.h"
#include "devices/ide/piix_ide.h"
#include "devices/test_support/memory_node.h"

namespace spindle::ide::test {

using spindle::test::MemoryNode;
using Kind = MemoryNode::Kind;

inline constexpr std::chrono::seconds kPatience{20};

class TestLine final : public InterruptLine {
 public:
  void set_level(bool asserted) override {
    std::lock_guard lock(mutex_);
    if (asserted && !level_) ++edges_;
    level_ = asserted;
    changed_.notify_all();
  }
  bool level() const {
    std::lock_guard lock(mutex_);
    return level_;
  }
  /// Rising edges so far: what an edge-triggered interrupt controller delivers.
  unsigned edges() const {
    std::lock_guard lock(mutex_);
    return edges_;
  }
  void wait_asserted() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [this] { return level_; }))
      throw std::runtime_error("lost interrupt");
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool level_ = false;
  unsigned edges_ = 0;
};

/// The registers a command is issued with, and (from HostDriver::result) those it ended with.
struct Registers {
  uint8_t opcode = 0;     ///< Status, in a result
  uint16_t features = 0;  ///< Error, in a result
  uint16_t count = 0;
  uint64_t lba = 0;
  bool ext = false;
  uint8_t device = kDeviceLba;  ///< with DEV
};

/// One channel seen from the host.
class HostDriver {
 public:
  HostDriver(PiixIde& ide, unsigned channel, TestLine& interrupt_line, std::vector<uint8_t>& ram)
      : ide_(ide), channel_(channel), line(interrupt_line), ram_(ram) {
    for (const pci::BarMapping& mapping : ide.mappings()) bus_master_ = mapping.handler;
  }

  uint8_t in(unsigned offset) {
    uint8_t value = 0;
    ide_.command_block(channel_).read(offset, std::span(&value, 1));
    return value;
  }
  void out(unsigned offset, uint8_t value) {
    ide_.command_block(channel_).write(offset, std::span<const uint8_t>(&value, 1));
  }
  uint8_t alternate_status() {
    uint8_t value = 0;
    ide_.control_block(channel_).read(0, std::span(&value, 1));
    return value;
  }
  void control(uint8_t value) { ide_.control_block(channel_).write(0, std::span<const uint8_t>(&value, 1)); }
  uint8_t bm_in(unsigned offset) {
    uint8_t value = 0;
    bus_master_->read(channel_ * kBmChannelBytes + offset, std::span(&value, 1));
    return value;
  }
  void bm_out(unsigned offset, uint8_t value) {
    bus_master_->write(channel_ * kBmChannelBytes + offset, std::span<const uint8_t>(&value, 1));
  }
  void bm_table(uint32_t address) {
    uint8_t bytes[4];
    std::memcpy(bytes, &address, 4);
    bus_master_->write(channel_ * kBmChannelBytes + kBmTable, bytes);
  }

  void select(unsigned unit) { out(kDevice, static_cast<uint8_t>(kDeviceLba | (unit ? kDeviceDev : 0))); }

  /// Polls Alternate Status until BSY is clear.
  uint8_t wait_not_busy() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      const uint8_t status = alternate_status();
      if (!(status & kBsy)) return status;
      if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("BSY for ever");
      std::this_thread::yield();
    }
  }

  /// ata_tf_load and ata_exec_command.
  void issue(const Registers& r) {
    const auto put = [&](unsigned offset, uint8_t high, uint8_t low) {
      if (r.ext) out(offset, high);
      out(offset, low);
    };
    uint8_t device = r.device;
    if (!r.ext) device |= static_cast<uint8_t>(r.lba >> 24 & kDeviceHead);
    out(kDevice, device);
    put(kFeatures, static_cast<uint8_t>(r.features >> 8), static_cast<uint8_t>(r.features));
    put(kSectorCount, static_cast<uint8_t>(r.count >> 8), static_cast<uint8_t>(r.count));
    put(kLbaLow, static_cast<uint8_t>(r.lba >> 24), static_cast<uint8_t>(r.lba));
    put(kLbaMid, static_cast<uint8_t>(r.lba >> 32), static_cast<uint8_t>(r.lba >> 8));
    put(kLbaHigh, static_cast<uint8_t>(r.lba >> 40), static_cast<uint8_t>(r.lba >> 16));
    out(kCommand, r.opcode);
  }

  /// Reads Status (which acknowledges the interrupt) and the rest of the task file.
  Registers result(bool ext = false) {
    Registers r;
    r.opcode = in(kStatus);
    r.features = in(kError);
    r.count = in(kSectorCount);
    r.lba = in(kLbaLow) | in(kLbaMid) << 8 | in(kLbaHigh) << 16;
    r.device = in(kDevice);
    if (ext) {
      control(kControlHob | control_);
      r.count |= static_cast<uint16_t>(in(kSectorCount) << 8);
      r.lba |= static_cast<uint64_t>(in(kLbaLow)) << 24 | static_cast<uint64_t>(in(kLbaMid)) << 32 |
               static_cast<uint64_t>(in(kLbaHigh)) << 40;
      control(control_);
    } else if (r.device & kDeviceLba) {
      r.lba |= static_cast<uint64_t>(r.device & kDeviceHead) << 24;
    }
    return r;
  }

  Registers non_data(const Registers& r) {
    issue(r);
    line.wait_asserted();
    return result(r.ext);
  }

  /// A PIO read of data.size() bytes in DRQ blocks of `block` sectors. Stops at ERR, after the block that
  /// comes with it, if one does.
  Registers pio_in(const Registers& r, std::span<uint8_t> data, unsigned block = 1, unsigned width = 2) {
    issue(r);
    for (;;) {
      line.wait_asserted();
      Registers after = result(r.ext);
      if (!(after.opcode & kDrq)) return after;
      const auto part = data.first(std::min<std::size_t>(data.size(), block * kSectorBytes));
      ide_.command_block(channel_).read_repeated(kData, part, width);
      data = data.subspan(part.size());
      if (after.opcode & kErr) return after;
      if (data.empty()) {
        after.opcode = wait_not_busy();
        return after;
      }
    }
  }

  Registers pio_out(const Registers& r, std::span<const uint8_t> data, unsigned block = 1,
                    unsigned width = 2) {
    issue(r);
    uint8_t status = wait_not_busy();  // the first block is asked for without an interrupt
    for (;;) {
      if (!(status & kDrq)) return result(r.ext);
      const auto part = data.first(std::min<std::size_t>(data.size(), block * kSectorBytes));
      ide_.command_block(channel_).write_repeated(kData, part, width);
      data = data.subspan(part.size());
      line.wait_asserted();
      if (data.empty()) return result(r.ext);
      status = in(kStatus);
      if (status & kErr) return result(r.ext);
    }
  }

  struct Region {
    uint32_t address;
    uint32_t bytes;  ///< 65536 is written as 0
  };
  /// Puts a PRD table at `table`.
  void put_table(uint32_t table, std::span<const Region> regions, bool end_marked = true) {
    for (std::size_t i = 0; i < regions.size(); ++i) {
      const uint32_t address = regions[i].address;
      uint32_t rest = regions[i].bytes & 0xffff;
      if (end_marked && i + 1 == regions.size()) rest |= 1u << 31;
      std::memcpy(ram_.data() + table + 8 * i, &address, 4);
      std::memcpy(ram_.data() + table + 8 * i + 4, &rest, 4);
    }
  }

  /// ata_bmdma_setup and ata_bmdma_start.
  void start_dma(const Registers& r, bool to_memory, uint32_t table = kTableAddress) {
    bm_out(kBmStatus, kBmInterrupt | kBmError | kBmDriveCapable);
    bm_table(table);
    const uint8_t direction = to_memory ? kBmToMemory : 0;
    bm_out(kBmCommand, direction);
    issue(r);
    bm_out(kBmCommand, direction | kBmStart);
  }
  /// The interrupt handler: waits, looks at the bus master, stops it, reads the task file.
  Registers finish_dma(bool ext) {
    line.wait_asserted();
    bm_status = bm_in(kBmStatus);
    bm_out(kBmCommand, bm_in(kBmCommand) & static_cast<uint8_t>(~kBmStart));
    bm_out(kBmStatus, kBmInterrupt | kBmError | kBmDriveCapable);
    return result(ext);
  }
  Registers dma(const Registers& r, bool to_memory, std::span<const Region> regions) {
    put_table(kTableAddress, regions);
    start_dma(r, to_memory);
    return finish_dma(r.ext);
  }
  /// One region of RAM, split at 64 KiB as libata does.
  Registers dma(const Registers& r, bool to_memory, uint32_t address, uint32_t bytes) {
    std::vector<Region> regions;
    while (bytes > 0) {
      const uint32_t to_boundary = 0x10000 - (address & 0xffff);
      const uint32_t take = std::min(bytes, to_boundary);
      regions.push_back({address, take});
      address += take;
      bytes -= take;
    }
    return dma(r, to_memory, regions);
  }

  void soft_reset() {
    control(control_ | kControlSrst);
    control(control_);
  }
  void set_nien(bool on) {
    control_ = on ? kControlNien : 0;
    control(control_);
  }

  std::vector<uint16_t> identify(unsigned unit = 0) {
    std::vector<uint8_t> bytes(kSectorBytes);
    Registers r{.opcode = 0xec};
    if (unit) r.device |= kDeviceDev;
    const Registers after = pio_in(r, bytes);
    if (after.opcode != kReady) throw std::runtime_error("IDENTIFY failed");
    std::vector<uint16_t> words(256);
    std::memcpy(words.data(), bytes.data(), bytes.size());
    return words;
  }

  static constexpr uint32_t kTableAddress = 0x1000;

  PiixIde& ide_;
  unsigned channel_;
  TestLine& line;
  std::vector<uint8_t>& ram_;
  IoHandler* bus_master_ = nullptr;
  uint8_t control_ = 0;
  uint8_t bm_status = 0;  ///< as the last finish_dma found it
};

struct RigOptions {
  uint64_t disk_bytes = 4u << 20;
  CacheMode cache = CacheMode::Writeback;
  bool read_only = false;
  uint32_t physical_sector = 1;
  bool rotational = false;
  bool discard = false;
  uint32_t discard_granularity = kSectorBytes;
  bool discard_zeroes = true;
  ThrottleLimits throttling = {};
  std::vector<unsigned> places = {0};       ///< 2 * channel + unit
  std::vector<unsigned> discs = {};         ///< CD-ROM drives with a medium each
  std::vector<unsigned> empty_drives = {};  ///< and without one
  uint64_t disc_bytes = 4u << 20;
  DriveOptions drive = {};
};

/// A controller with one memory disk as device 0 of channel 0, and more on request.
class Rig {
 public:
  explicit Rig(RigOptions options = {})
      : ram(1u << 20),
        memory({{.guest_address = 0, .size = ram.size(), .host = ram.data()}}),
        reactor_thread(*ReactorThread::start("ide-test")),
        ide(std::make_unique<PiixIde>(memory, reactor_thread->reactor(),
                                      std::array<InterruptLine*, kChannels>{&lines[0], &lines[1]})) {
    for (unsigned place : options.places) {
      auto attached = ide->attach(place / 2, place % 2, make_disk(place, options), options.drive);
      if (!attached) throw std::runtime_error(attached.error()->message());
    }
    for (unsigned place : options.discs) attach_cdrom(place, make_disc(place, options), options.drive);
    for (unsigned place : options.empty_drives) attach_cdrom(place, nullptr, options.drive);
    power_up();
  }
  void attach_cdrom(unsigned place, std::shared_ptr<Disk> medium, const DriveOptions& drive) {
    auto attached = ide->attach_cdrom(place / 2, place % 2, std::move(medium), "cd", drive);
    if (!attached) throw std::runtime_error(attached.error()->message());
  }
  std::shared_ptr<Disk> make_disk(unsigned place, const RigOptions& options) {
    auto node = std::make_shared<MemoryNode>(reactor_thread->reactor(), options.disk_bytes);
    node->mutable_facts().request_alignment = options.physical_sector;
    node->mutable_facts().rotational = options.rotational;
    node->mutable_facts().discard_granularity = options.discard_granularity;
    node->mutable_facts().discard_zeroes = options.discard_zeroes;
    return add(node, options.throttling,
               {.id = "disk" + std::to_string(place),
                .cache = options.cache,
                .read_only = options.read_only,
                .discard = options.discard});
  }
  std::shared_ptr<Disk> make_disc(unsigned place, const RigOptions& options) {
    return add(std::make_shared<MemoryNode>(reactor_thread->reactor(), options.disc_bytes),
               options.throttling, {.id = "cd" + std::to_string(place), .read_only = true});
  }
  std::shared_ptr<Disk> add(std::shared_ptr<MemoryNode> node, const ThrottleLimits& throttling,
                            DiskOptions options) {
    nodes.push_back(node);
    disks.push_back(std::make_shared<Disk>(std::make_shared<ThrottleNode>(std::move(node), throttling),
                                           std::move(options)));
    return disks.back();
  }
  ~Rig() {
    reactor_thread->call([this] { return ide->drain(); });
    // What a flush at the end says is the business of the tests that are about it.
    for (auto& disk : disks) (void)reactor_thread->call([&disk] { return disk->close(); });
  }

  /// What firmware and the PCI core do.
  void power_up() {
    ide->assign_bar(kBusMasterBar, 0xc000);
    ide->write_config(pci::kCommand, 2, pci::kCommandIo | pci::kCommandBusMaster);
  }
  HostDriver driver(unsigned channel = 0) { return HostDriver(*ide, channel, lines[channel], ram); }
  MemoryNode& node(std::size_t i = 0) { return *nodes[i]; }
  Disk& disk(std::size_t i = 0) { return *disks[i]; }
  /// Requests that wait for their limits.
  std::size_t throttled(std::size_t i = 0) {
    return reactor_thread->call(
        [&]() -> Task<std::size_t> { co_return find_throttle(disk(i).node())->waiting(); });
  }
  void fill(uint32_t address, uint32_t bytes, uint8_t seed) {
    for (uint32_t i = 0; i < bytes; ++i) ram[address + i] = pattern(seed, i);
  }
  static uint8_t pattern(uint8_t seed, uint64_t i) {
    return static_cast<uint8_t>(seed + i * 7 + (i >> 9) * 13);
  }
  static std::vector<uint8_t> pattern_bytes(uint8_t seed, std::size_t bytes) {
    std::vector<uint8_t> result(bytes);
    for (std::size_t i = 0; i < bytes; ++i) result[i] = pattern(seed, i);
    return result;
  }
  std::vector<uint8_t> ram_bytes(uint32_t address, uint32_t bytes) const {
    return {ram.begin() + address, ram.begin() + address + bytes};
  }

  std::vector<uint8_t> ram;
  GuestMemory memory;
  TestLine lines[2];
  std::unique_ptr<ReactorThread> reactor_thread;
  std::vector<std::shared_ptr<MemoryNode>> nodes;
  std::vector<std::shared_ptr<Disk>> disks;
  std::unique_ptr<PiixIde> ide;
};

}  // namespace spindle::ide::test
