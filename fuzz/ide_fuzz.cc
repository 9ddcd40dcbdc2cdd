// The PIIX IDE controller against a host that writes what it likes into its registers, PRD tables and memory.
//
// An input says which drives there are, disks and CD-ROM drives, and goes on as a list of steps: single
// registers in any width, whole commands with and without a command block, blocks through the data register,
// PRD tables and starts of the bus master, resets of each kind, configuration writes, media that come and go,
// and disks that hold or fail requests. DMA completes where the reactor is run, so registers are written
// while it is under way. Both channels have the same memory.
//
// Besides what the sanitizers find: nothing changes memory but the fuzzer and what PRD tables name; a host
// that goes on as it should, with good tables and the data that is asked for, brings each command to its end;
// and whatever the host did, a machine reset ends with no request in flight, no drive busy and no interrupt,
// and nothing but the fuzzer's writes touches memory after it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "block/disk.h"
#include "devices/ide/ata.h"
#include "devices/ide/mmc.h"
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
constexpr uint64_t kDiscBytes = 33 << 10;  // the last block is half a one
constexpr unsigned kSteps = 200;
constexpr uint8_t kFloatingBus = 0x7f;  // the status of an empty channel
constexpr unsigned kIdetim = 0x40;      // both channels' decoding, in PCI configuration
constexpr unsigned kGoodEntries = 64;   // of a table: 1 MiB, more than any command here moves
constexpr uint64_t kPorts = 0xc000;

// Commands a drive knows; others come as single register writes.
constexpr uint8_t kOpcodes[] = {
    0x00, 0x06, 0x08, 0x10, 0x20, 0x21, 0x24, 0x25, 0x27, 0x29, 0x2f, 0x30, 0x31, 0x34, 0x35, 0x39,
    0x3d, 0x40, 0x41, 0x42, 0x90, 0x91, 0xa0, 0xa1, 0xb0, 0xc4, 0xc5, 0xc6, 0xc8, 0xc9, 0xca, 0xcb,
    0xce, 0xe0, 0xe1, 0xe2, 0xe3, 0xe5, 0xe6, 0xe7, 0xea, 0xec, 0xef, 0xf1, 0xf5, 0xf8, 0xf9,
};

// What lies in a packet device's command blocks.
constexpr uint8_t kPacketOpcodes[] = {
    kTestUnitReady, kRequestSense, kInquiry,    kStartStopUnit,    kPreventAllow,   kReadCapacity,
    kRead10,        kSeek10,       kReadToc,    kGetConfiguration, kGetEventStatus, kReadDiscInformation,
    kModeSense10,   kRead12,       kSetCdSpeed, kMechanismStatus,  kReadCd,         0xff,
};

class Line final : public InterruptLine {
 public:
  void set_level(bool asserted) override { level = asserted; }
  bool level = false;
};

// Which bytes of memory the controller may write: those in a region of a PRD table that it may have read. It
// reads an entry when it comes to it, so a table is looked at again whenever memory has changed, and all that
// could be an entry of it counts, whatever end is marked.
class NamedByTables {
 public:
  /// `memory` is as contents() was when the engine ran with the table at `address`.
  void add(const std::string& memory, uint32_t address) {
    const uint64_t end = (address & ~uint64_t{0xffff}) + 0x10000;  // of the page that a table lies in
    for (uint64_t at = address; at < end; at += 8) {
      const Ram::Place entry = Ram::place(at);
      if (entry.left < 8) continue;
      uint32_t words[2];
      std::memcpy(words, memory.data() + entry.index, sizeof words);
      const std::size_t bytes = (words[1] & 0xfffe) != 0 ? words[1] & 0xfffe : 0x10000;
      const Ram::Place region = Ram::place(words[0] & ~1u);
      std::fill_n(named_.begin() + static_cast<std::ptrdiff_t>(region.index), std::min(region.left, bytes),
                  true);
    }
  }
  bool contains(std::size_t index) const { return named_[index]; }
  void clear() { std::ranges::fill(named_, false); }

 private:
  std::vector<uint8_t> named_ = std::vector<uint8_t>(2 * Ram::kBlock);  // by contents()
};

class Host {
 public:
  explicit Host(FuzzedDataProvider& input) : input_(input), patient_(input.ConsumeBool()) {
    attach_drives();
    power_up();
    // Zeroes, and what disks have, would not be seen where they do not belong.
    const std::vector<uint8_t> filled(Ram::kBlock, 0xa5);
    write(Ram::kSecond, filled.data(), filled.size());
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host() {
    if (patient_) bring_to_an_end();
    machine_reset();
    for (auto& disk : disks_) (void)reactor().wait(disk->close());
  }

  void step() {
    act();
    check_memory();
  }

 private:
  void act() {
    switch (input_.ConsumeIntegralInRange(0, 12)) {
      case 0: {
        const auto bytes = input_.ConsumeBytes<uint8_t>(input_.ConsumeIntegralInRange<std::size_t>(1, 64));
        return write(Ram::address(input_), bytes.data(), bytes.size());
      }
      case 1:
        return access(ide_.command_block(channel()), 8);
      case 2:
        return access(ide_.control_block(channel()), 1);
      case 3:
        return access(*ports_, 16);
      case 4:
        return command();
      case 5:
        return packet();
      case 6:
        return transfer();
      case 7:
        return table();
      case 8:
        return start(input_.ConsumeBool());
      case 9:
        return settle();
      case 10:
        switch (input_.ConsumeIntegralInRange(0, 7)) {
          case 0:
            return machine_reset();
          case 1:
            return move_medium();
        }
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

  // Each of the four places may be empty: a drive that is second without a first is one of them.
  void attach_drives() {
    for (unsigned place = 0; place < 4; ++place) {
      switch (input_.ConsumeIntegralInRange(0, 4)) {
        case 0:
          break;
        case 1:
          attach_disk(place, false);
          break;
        case 2:
          attach_disk(place, true);
          break;
        case 3:
          attach_cdrom(place, make_disk(kDiscBytes, true));
          break;
        case 4:
          attach_cdrom(place, nullptr);
          break;
      }
    }
  }
  std::shared_ptr<Disk> make_disk(uint64_t bytes, bool read_only) {
    nodes_.push_back(std::make_shared<MemoryNode>(reactor(), bytes));
    nodes_.back()->put(0, std::vector<uint8_t>(bytes, 0x5a));
    disks_.push_back(std::make_shared<Disk>(
        nodes_.back(), DiskOptions{.id = "fuzz", .read_only = read_only, .discard = input_.ConsumeBool()}));
    return disks_.back();
  }
  void attach_disk(unsigned place, bool read_only) {
    if (!ide_.attach(place / 2, place % 2, make_disk(kDiskBytes, read_only))) stop("a disk is refused");
  }
  void attach_cdrom(unsigned place, std::shared_ptr<Disk> medium) {
    if (!ide_.attach_cdrom(place / 2, place % 2, std::move(medium), "fuzz"))
      stop("a CD-ROM drive is refused");
    cdroms_.push_back({place, make_disk(kDiscBytes, true)});
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
  // PACKET and its command block; that of a read is of blocks near the start, mostly.
  void packet() {
    IoHandler& block = ide_.command_block(channel());
    put(block, kDevice, input_.ConsumeIntegral<uint8_t>());
    put(block, kFeatures, input_.ConsumeIntegral<uint8_t>());
    put(block, kLbaMid, input_.ConsumeIntegral<uint8_t>());
    put(block, kLbaHigh, input_.ConsumeIntegral<uint8_t>());
    put(block, kCommand, 0xa0);
    std::array<uint8_t, kCdbBytes> cdb{input_.PickValueInArray(kPacketOpcodes)};
    const auto fields = input_.ConsumeBytes<uint8_t>(cdb.size() - 1);
    std::ranges::copy(fields, cdb.begin() + 1);
    const bool reads = cdb[0] == kRead10 || cdb[0] == kRead12 || cdb[0] == kReadCd;
    if (reads && input_.ConsumeIntegralInRange(0, 7) != 0) std::fill_n(cdb.begin() + 2, 3, uint8_t{0});
    block.write_repeated(kData, cdb, 2);
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
      write(at, entry, sizeof entry);
    }
  }
  void start(bool to_memory) { start_channel(channel(), to_memory); }
  void start_channel(unsigned which, bool to_memory) {
    const unsigned first = which * kBmChannelBytes;
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
  // The host's user at a CD-ROM drive: the tray, and another medium, which may be none.
  void move_medium() {
    if (cdroms_.empty()) return;
    auto& [place, spare] = cdroms_[input_.ConsumeIntegral<uint8_t>() % cdroms_.size()];
    Channel& channel = ide_.channel(place / 2);
    const bool force = input_.ConsumeBool();
    switch (input_.ConsumeIntegralInRange(0, 2)) {
      case 0:
        if (!channel.open_tray(place % 2, force) && !channel.tray(place % 2).locked)
          stop("a tray stays closed that is not locked");
        return;
      case 1:
        return channel.close_tray(place % 2);
      case 2:
        if (!channel.change_medium(place % 2, spare, force) && force) stop("force is not enough");
        if (!spare || input_.ConsumeBool()) return;
        for (auto& node : nodes_) fuzz::release_all(*node);
        reactor().wait(channel.let_go(*spare));
        return;
    }
  }
  // Requests that the disks hold end while the reset waits for them; until then they may write.
  void machine_reset() {
    for (auto& node : nodes_) fuzz::release_all(*node);
    ide_.reset();
    reactor().wait(ide_.drain());
    settle();
    if (ide_.jobs() != 0) stop("a reset left requests in flight");
    for (unsigned each = 0; each < kChannels; ++each) {
      if (status(each) & kBsy) stop("a drive is busy after a reset");
      if (lines_[each].level) stop("an interrupt outlives a reset");
    }
    check_memory();
    named_.clear();
    settle();
    if (ram_.contents() != known_) stop("memory was touched after a reset");
    power_up();
  }
  // A host that goes on as it should: the disks answer, the ports are decoded, data is moved as long as DRQ
  // asks for it, and while a drive is busy there is a table of all that any command can want.
  void bring_to_an_end() {
    for (auto& node : nodes_) fuzz::release_all(*node);
    power_up();
    ide_.write_config(kIdetim, 4, 0x8000'8000);
    for (unsigned each = 0; each < kChannels; ++each) {
      put(ide_.control_block(each), 0, 0);
      settle();
      check_memory();
      // The most blocks that one command has: a disc in words.
      for (uint64_t rounds = 0; status(each) & (kBsy | kDrq); ++rounds) {
        if (rounds > kDiscBytes) stop("a command does not come to an end");
        go_on(each);
        check_memory();
      }
    }
  }
  uint8_t status(unsigned each) {
    uint8_t value = 0;
    ide_.control_block(each).read(0, std::span(&value, 1));
    return value == kFloatingBus ? 0 : value;
  }
  void go_on(unsigned each) {
    if (status(each) & kDrq) {
      std::array<uint8_t, kMaxMultiple * kSectorBytes> data{};
      ide_.command_block(each).read_repeated(kData, data, 2);
      ide_.command_block(each).write_repeated(kData, data, 2);
      return;
    }
    settle();
    if (!(status(each) & kBsy)) return;
    std::array<std::array<uint32_t, 2>, kGoodEntries> entries;
    entries.fill({static_cast<uint32_t>(Ram::kSecond), Ram::kBlock});
    write(Ram::kFirst, entries.data(), sizeof entries);
    put(*ports_, each * kBmChannelBytes + kBmCommand, 0);
    check_memory();
    table_ = Ram::kFirst;
    start_channel(each, true);
    check_memory();
    settle();
  }

  // The fuzzer's own writes.
  void write(uint64_t address, const void* data, std::size_t bytes) {
    check_memory();
    ram_.write(address, data, bytes);
    known_ = ram_.contents();
    looked_at_ = {};
  }
  // All else that has changed was written by DMA. Between two calls, memory is as `known_` when an entry is
  // read, and an engine is started once at most.
  void check_memory() {
    for (unsigned each = 0; each < kChannels; ++each) {
      std::array<uint8_t, kBmChannelBytes> registers{};
      for (unsigned i = 0; i < registers.size(); ++i)
        ports_->read(each * kBmChannelBytes + i, std::span(registers).subspan(i, 1));
      const bool started = registers[kBmCommand] & kBmStart;
      if (started && !started_[each]) {
        std::memcpy(&engine_table_[each], &registers[kBmTable], sizeof engine_table_[each]);
        looked_at_[each] = false;
      }
      started_[each] = started;
      if (started && !std::exchange(looked_at_[each], true)) named_.add(known_, engine_table_[each]);
    }
    std::string now = ram_.contents();
    if (now == known_) return;
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (now[i] != known_[i] && !named_.contains(i)) stop("memory was written that no table names");
    }
    known_ = std::move(now);
    looked_at_ = {};
  }

  FuzzedDataProvider& input_;
  Ram ram_;
  std::array<Line, kChannels> lines_;
  PiixIde ide_{ram_.memory(), reactor(), {&lines_[0], &lines_[1]}};
  std::vector<std::shared_ptr<MemoryNode>> nodes_;
  std::vector<std::shared_ptr<Disk>> disks_;
  struct CdromPlace {
    unsigned place;
    std::shared_ptr<Disk> spare;  // what is not in the drive
  };
  std::vector<CdromPlace> cdroms_;
  IoHandler* ports_ =
      nullptr;  // of the bus master, whether the BAR decodes or not: that is the PCI fuzzer's business
  uint32_t table_ = 0;

  bool patient_;                         // lets the commands under way end before the last reset
  std::string known_ = ram_.contents();  // as it was when it was last looked at
  NamedByTables named_;
  std::array<bool, kChannels> started_{}, looked_at_{};  // and the table was looked at since memory changed
  std::array<uint32_t, kChannels> engine_table_{};
};

}  // namespace
}  // namespace spindle::ide

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return spindle::fuzz::live<spindle::ide::Host>(data, size, spindle::ide::kSteps);
}
