// The PIIX IDE controller against a host that writes what it likes into its registers, PRD tables and memory.
//
// An input says which drives there are and goes on as a list of steps: single registers in any width, whole
// commands, blocks through the data register, PRD tables and starts of the bus master, resets of each kind,
// configuration writes, and disks that hold or fail requests. DMA completes where the reactor is run, so
// registers are written while it is under way. Both channels have the same memory.
//
// Besides what the sanitizers find: whatever the host did, a machine reset ends with no request in flight, no
// drive busy and no interrupt, and nothing but the fuzzer's writes touches memory after it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "block/disk.h"
#include "devices/ide/ata.h"
#include "devices/ide/piix_ide.h"
#include "fuzz/machine.h"

namespace spindle::ide {
namespace {

using fuzz::Ram;
using fuzz::reactor;
using fuzz::settle;
using fuzz::stop;
using spindle::test::MemoryNode;

constexpr uint64_t kDiskBytes = 128 << 10;
constexpr unsigned kSteps = 200;
constexpr uint64_t kPorts = 0xc000;

// Commands a drive knows; others come as single register writes.
constexpr uint8_t kOpcodes[] = {
    0x00, 0x06, 0x08, 0x10, 0x20, 0x21, 0x24, 0x25, 0x27, 0x29, 0x2f, 0x30, 0x31, 0x34, 0x35, 0x39,
    0x3d, 0x40, 0x41, 0x42, 0x90, 0x91, 0xa0, 0xa1, 0xb0, 0xc4, 0xc5, 0xc6, 0xc8, 0xc9, 0xca, 0xcb,
    0xce, 0xe0, 0xe1, 0xe2, 0xe3, 0xe5, 0xe6, 0xe7, 0xea, 0xec, 0xef, 0xf1, 0xf5, 0xf8, 0xf9,
};

class Line final : public InterruptLine {
 public:
  void set_level(bool asserted) override { level = asserted; }
  bool level = false;
};

class Host {
 public:
  explicit Host(FuzzedDataProvider& input) : input_(input) {
    attach_drives();
    power_up();
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host() {
    machine_reset();
    for (auto& disk : disks_) (void)reactor().wait(disk->close());
  }

  void step() {
    switch (input_.ConsumeIntegralInRange(0, 12)) {
      case 0: {
        const auto bytes = input_.ConsumeBytes<uint8_t>(input_.ConsumeIntegralInRange<std::size_t>(1, 64));
        ram_.write(Ram::address(input_), bytes.data(), bytes.size());
        break;
      }
      case 1:
        return access(ide_.command_block(channel()), 8);
      case 2:
        return access(ide_.control_block(channel()), 1);
      case 3:
        return access(*ports_, 16);
      case 4:
      case 5:
        return command();
      case 6:
        return transfer();
      case 7:
        return table();
      case 8:
        return start(input_.ConsumeBool());
      case 9:
        return settle();
      case 10:
        if (input_.ConsumeIntegralInRange(0, 7) == 0) return machine_reset();
        return configure();
      case 11:
        ide_.control_block(channel()).write(0, std::array{input_.ConsumeIntegral<uint8_t>()});
        return;
      case 12:
        if (!nodes_.empty())
          fuzz::disturb(input_, *nodes_[input_.ConsumeIntegral<uint8_t>() % nodes_.size()]);
        return;
    }
  }

 private:
  // Each of the four places may be empty: a drive that is second without a first is one of them.
  void attach_drives() {
    const auto places = input_.ConsumeIntegral<uint8_t>();
    for (unsigned place = 0; place < 4; ++place) {
      if (places >> place & 1) attach_disk(place, places >> (4 + place) & 1);
    }
  }
  void attach_disk(unsigned place, bool read_only) {
    nodes_.push_back(std::make_shared<MemoryNode>(reactor(), kDiskBytes));
    disks_.push_back(std::make_shared<Disk>(
        nodes_.back(), DiskOptions{.id = "fuzz", .read_only = read_only, .discard = input_.ConsumeBool()}));
    if (!ide_.attach(place / 2, place % 2, disks_.back())) stop("a disk is refused");
  }
  // What firmware does.
  void power_up() {
    ide_.assign_bar(kBusMasterBar, kPorts);
    ide_.write_config(pci::kCommand, 2, pci::kCommandIo | pci::kCommandBusMaster);
    ports_ = ide_.mappings().front().handler;
  }

  unsigned channel() { return input_.ConsumeIntegralInRange(0u, kChannels - 1); }
  // As from a vCPU: 1, 2 or 4 bytes, all inside the range.
  void access(IoHandler& handler, unsigned size) {
    const auto offset = input_.ConsumeIntegralInRange(0u, size - 1);
    unsigned width = 1u << input_.ConsumeIntegralInRange(0, 2);
    while (offset + width > size) width /= 2;
    uint8_t bytes[4] = {};
    if (input_.ConsumeBool()) return handler.read(offset, std::span(bytes).first(width));
    for (uint8_t& byte : bytes) byte = input_.ConsumeIntegral<uint8_t>();
    if (handler.write(offset, std::span(bytes).first(width))) stop("an access waits");
  }
  void put(IoHandler& handler, unsigned offset, uint8_t value) {
    handler.write(offset, std::span<const uint8_t>(&value, 1));
  }
  // A whole task file; half of the time with previous values, as 48-bit commands have them.
  void command() {
    IoHandler& block = ide_.command_block(channel());
    put(block, kDevice, input_.ConsumeIntegral<uint8_t>());
    for (int rounds = input_.ConsumeIntegralInRange(1, 2); rounds > 0; --rounds) {
      put(block, kFeatures, input_.ConsumeIntegral<uint8_t>());
      put(block, kSectorCount, input_.ConsumeIntegral<uint8_t>());
      put(block, kLbaLow, input_.ConsumeIntegral<uint8_t>());
      const bool far = input_.ConsumeIntegralInRange(0, 7) == 0;
      put(block, kLbaMid, far ? input_.ConsumeIntegral<uint8_t>() : 0);
      put(block, kLbaHigh, far ? input_.ConsumeIntegral<uint8_t>() : 0);
    }
    put(block, kCommand, input_.PickValueInArray(kOpcodes));
  }
  void transfer() {
    IoHandler& block = ide_.command_block(channel());
    const std::size_t width = std::size_t{1} << input_.ConsumeIntegralInRange(0, 2);
    std::vector<uint8_t> bytes(width * input_.ConsumeIntegralInRange<std::size_t>(1, 1200));
    const auto offset = input_.ConsumeIntegralInRange(0, 7) == 0 ? 4u : kData;
    if (input_.ConsumeBool()) {
      block.read_repeated(offset, bytes, width);
    } else {
      const auto given = input_.ConsumeBytes<uint8_t>(64);
      std::ranges::copy(std::span(given).first(std::min(given.size(), bytes.size())), bytes.begin());
      block.write_repeated(offset, bytes, width);
    }
    settle();
  }
  void table() {
    uint64_t at = table_ = static_cast<uint32_t>(Ram::address(input_));
    for (int entries = input_.ConsumeIntegralInRange(1, 8); entries > 0; --entries, at += 8) {
      const uint32_t entry[2] = {static_cast<uint32_t>(Ram::address(input_)),
                                 input_.ConsumeIntegral<uint32_t>()};
      ram_.write(at, entry, sizeof entry);
    }
  }
  void start(bool to_memory) {
    const unsigned first = channel() * kBmChannelBytes;
    uint8_t address[4];
    std::memcpy(address, &table_, sizeof address);
    ports_->write(first + kBmTable, address);
    put(*ports_, first + kBmCommand, static_cast<uint8_t>(kBmStart | (to_memory ? kBmToMemory : 0)));
  }
  void configure() {
    const auto offset = input_.ConsumeIntegralInRange(0u, 255u);
    const unsigned width = 1u << input_.ConsumeIntegralInRange(0, 2);
    ide_.write_config(offset, width, input_.ConsumeIntegral<uint32_t>());
    if (input_.ConsumeBool()) power_up();
  }
  // Requests that the disks hold end while the reset waits for them.
  void machine_reset() {
    for (auto& node : nodes_) fuzz::release_all(*node);
    ide_.reset();
    reactor().wait(ide_.drain());
    settle();
    if (ide_.jobs() != 0) stop("a reset left requests in flight");
    for (unsigned each = 0; each < kChannels; ++each) {
      uint8_t status = 0;
      ide_.control_block(each).read(0, std::span(&status, 1));
      if (status & kBsy) stop("a drive is busy after a reset");
      if (lines_[each].level) stop("an interrupt outlives a reset");
    }
    const std::string before = ram_.contents();
    settle();
    if (ram_.contents() != before) stop("memory was touched after a reset");
    power_up();
  }

  FuzzedDataProvider& input_;
  Ram ram_;
  std::array<Line, kChannels> lines_;
  PiixIde ide_{ram_.memory(), reactor(), {&lines_[0], &lines_[1]}};
  std::vector<std::shared_ptr<MemoryNode>> nodes_;
  std::vector<std::shared_ptr<Disk>> disks_;
  IoHandler* ports_ =
      nullptr;  // of the bus master, whether the BAR decodes or not: that is the PCI fuzzer's business
  uint32_t table_ = 0;
};

}  // namespace
}  // namespace spindle::ide

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return spindle::fuzz::live<spindle::ide::Host>(data, size, spindle::ide::kSteps);
}
