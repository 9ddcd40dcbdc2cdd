// The bus master engine: every kind of PRD table, start and stop in any order, and what the status then says.
#include "devices/ide/bus_master.h"

#include <doctest/doctest.h>

#include "devices/ide/test_driver.h"

namespace spindle::ide::test {
namespace {

constexpr uint32_t kBuffer = 0x20000;
constexpr uint32_t kTable = HostDriver::kTableAddress;
constexpr uint8_t kState = kBmActive | kBmError | kBmInterrupt;
using Region = HostDriver::Region;

struct DmaRig : Rig {
  DmaRig() : content(Rig::pattern_bytes(3, node().size())), host(driver()) { node().put(0, content); }
  std::vector<uint8_t> part(uint64_t lba, uint64_t bytes) const {
    const auto begin = content.begin() + static_cast<std::ptrdiff_t>(lba * kSectorBytes);
    return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
  }
  uint8_t state() { return host.bm_in(kBmStatus) & kState; }
  std::vector<uint8_t> content;
  HostDriver host;
};

// READ DMA EXT.
Registers read_of(uint16_t sectors, uint64_t lba = 10) {
  return {.opcode = 0x25, .count = sectors, .lba = lba, .ext = true};
}

TEST_CASE("scattered regions, down to single words") {
  DmaRig rig;
  std::vector<Region> regions;
  std::vector<uint8_t> expected = rig.part(10, 1024);
  uint32_t total = 0;
  for (uint32_t bytes : {2u, 30u, 4u, 476u, 2u, 510u}) {
    regions.push_back({kBuffer + 3 * total, bytes});
    total += bytes;
  }
  CHECK(rig.host.dma(read_of(2), true, regions).opcode == kReady);
  CHECK((rig.host.bm_status & kState) == kBmInterrupt);
  std::vector<uint8_t> found;
  for (const Region& region : regions) {
    const auto piece = rig.ram_bytes(region.address, region.bytes);
    found.insert(found.end(), piece.begin(), piece.end());
  }
  CHECK(found == expected);
  // And back.
  Registers write = read_of(2, 500);
  write.opcode = 0x35;
  CHECK(rig.host.dma(write, false, regions).opcode == kReady);
  CHECK(rig.node().bytes(500 * kSectorBytes, 1024) == expected);
}

TEST_CASE("a region across a 64 KiB boundary goes on in a straight line; odd addresses and counts are even") {
  DmaRig rig;
  const std::vector<Region> crossing = {{0x2ff00, 1024}};
  CHECK(rig.host.dma(read_of(2), true, crossing).opcode == kReady);
  CHECK(rig.ram_bytes(0x2ff00, 1024) == rig.part(10, 1024));
  const std::vector<Region> odd = {{kBuffer + 1, 513}};
  CHECK(rig.host.dma(read_of(1, 20), true, odd).opcode == kReady);
  CHECK(rig.ram_bytes(kBuffer, 512) == rig.part(20, 512));
}

TEST_CASE("zero length is 64 KiB") {
  DmaRig rig;
  const std::vector<Region> regions = {{kBuffer, 0x10000}};
  CHECK(rig.host.dma(read_of(128), true, regions).opcode == kReady);
  CHECK((rig.host.bm_status & kState) == kBmInterrupt);
  CHECK(rig.ram_bytes(kBuffer, 0x10000) == rig.part(10, 0x10000));
}

TEST_CASE("a table longer than the transfer leaves Active set") {
  DmaRig rig;
  for (const std::vector<Region>& regions :
       {std::vector<Region>{{kBuffer, 1024}}, std::vector<Region>{{kBuffer, 512}, {kBuffer + 512, 2}}}) {
    rig.host.put_table(kTable, regions);
    rig.host.start_dma(read_of(1), true);
    rig.host.line.wait_asserted();
    CHECK(rig.state() == (kBmActive | kBmInterrupt));
    rig.host.bm_out(kBmCommand, kBmToMemory);
    CHECK(rig.state() == kBmInterrupt);
    CHECK(rig.host.result().opcode == kReady);
  }
  // No end mark, but exactly as long: the controller cannot know that it is the end.
  const Region exact{kBuffer, 512};
  rig.host.put_table(kTable, std::span(&exact, 1), false);
  rig.host.start_dma(read_of(1), true);
  rig.host.line.wait_asserted();
  CHECK(rig.state() == (kBmActive | kBmInterrupt));
}

TEST_CASE("a running engine goes on through its table with the next command") {
  DmaRig rig;
  const std::vector<Region> regions = {{kBuffer, 1024}, {kBuffer + 0x1000, 512}};
  rig.host.put_table(kTable, regions);
  rig.host.start_dma(read_of(1, 10), true);
  rig.host.line.wait_asserted();
  CHECK(rig.host.result().opcode == kReady);
  rig.host.issue(read_of(2, 30));
  rig.host.line.wait_asserted();
  CHECK(rig.state() == kBmInterrupt);
  CHECK(rig.ram_bytes(kBuffer, 512) == rig.part(10, 512));
  CHECK(rig.ram_bytes(kBuffer + 512, 512) == rig.part(30, 512));
  CHECK(rig.ram_bytes(kBuffer + 0x1000, 512) == rig.part(31, 512));
}

TEST_CASE("a table shorter than the transfer moves nothing, and the drive waits") {
  DmaRig rig;
  rig.node().clear_log();
  const std::vector<Region> regions = {{kBuffer, 512}, {kBuffer + 512, 510}};
  rig.host.put_table(kTable, regions);
  rig.host.start_dma(read_of(2), true);
  CHECK(rig.state() == 0);
  CHECK((rig.host.alternate_status() & kBsy) != 0);
  CHECK(rig.lines[0].edges() == 0);
  CHECK(rig.node().log().empty());
  SUBCASE("a soft reset frees it") {
    rig.host.soft_reset();
    CHECK(rig.host.wait_not_busy() == kReady);
    CHECK(rig.host.dma(read_of(2), true, kBuffer, 1024).opcode == kReady);
  }
  SUBCASE("a new start with a table that is long enough performs the command") {
    const Region enough{kBuffer, 1024};
    rig.host.bm_out(kBmCommand, kBmToMemory);
    rig.host.put_table(kTable, std::span(&enough, 1));
    rig.host.bm_out(kBmCommand, kBmToMemory | kBmStart);
    CHECK(rig.host.finish_dma(true).opcode == kReady);
    CHECK(rig.ram_bytes(kBuffer, 1024) == rig.part(10, 1024));
  }
}

TEST_CASE("addresses that are no RAM are bus errors, and nothing moves") {
  DmaRig rig;
  rig.node().clear_log();
  const auto ram_end = static_cast<uint32_t>(rig.ram.size());
  struct Case {
    const char* what;
    uint32_t table;
    std::vector<Region> regions;
    bool end_marked;
  };
  const Case cases[] = {
      {"a region beyond RAM", kTable, {{ram_end, 512}}, true},
      {"a region that ends beyond RAM", kTable, {{ram_end - 256, 512}}, true},
      {"the second region beyond RAM", kTable, {{kBuffer, 256}, {0xfffffffe, 256}}, true},
      {"a region that wraps around", kTable, {{0xffffff00, 512}}, true},
      {"a table beyond RAM", ram_end, {}, true},
      {"a table at the end of the address space", 0xfffffffc, {}, true},
      {"a table that runs out of RAM", ram_end - 8, {{kBuffer, 256}}, false},
      {"a table that runs out of its page", 0xfff8, {{kBuffer, 256}}, false},
      {"an entry that lies across the end of its page", 0xfffc, {{kBuffer, 512}}, true},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    if (!c.regions.empty()) rig.host.put_table(c.table, c.regions, c.end_marked);
    rig.host.start_dma(read_of(1), true, c.table);
    CHECK(rig.state() == kBmError);
    CHECK((rig.host.alternate_status() & kBsy) != 0);
    CHECK(rig.lines[0].edges() == 0);
    rig.host.bm_out(kBmCommand, kBmToMemory);
    rig.host.bm_out(kBmStatus, kBmError | kBmDriveCapable);
    CHECK(rig.state() == 0);
    rig.host.soft_reset();
    CHECK(rig.host.wait_not_busy() == kReady);
  }
  CHECK(rig.node().log().empty());
}

TEST_CASE("a table of zeroes is 64 KiB regions at address 0, as far as they are needed") {
  DmaRig rig;
  rig.host.start_dma(read_of(1), true, 0x8000);
  rig.host.line.wait_asserted();
  CHECK(rig.state() == (kBmActive | kBmInterrupt));
  CHECK(rig.ram_bytes(0, 512) == rig.part(10, 512));
}

TEST_CASE("start before the command works as well") {
  DmaRig rig;
  const Region region{kBuffer, 512};
  rig.host.put_table(kTable, std::span(&region, 1));
  rig.host.bm_table(kTable);
  rig.host.bm_out(kBmCommand, kBmToMemory | kBmStart);
  CHECK(rig.state() == kBmActive);
  rig.host.issue(read_of(1));
  CHECK(rig.host.finish_dma(true).opcode == kReady);
  CHECK((rig.host.bm_status & kState) == kBmInterrupt);
  CHECK(rig.ram_bytes(kBuffer, 512) == rig.part(10, 512));
}

TEST_CASE("without the Bus Master bit of PCI Command nothing moves; setting it lets the transfer go") {
  DmaRig rig;
  rig.ide->write_config(pci::kCommand, 2, pci::kCommandIo);
  const Region region{kBuffer, 512};
  rig.host.put_table(kTable, std::span(&region, 1));
  rig.node().clear_log();
  rig.host.start_dma(read_of(1), true);
  CHECK(rig.state() == kBmActive);
  CHECK((rig.host.alternate_status() & kBsy) != 0);
  CHECK(rig.node().log().empty());
  rig.ide->write_config(pci::kCommand, 2, pci::kCommandIo | pci::kCommandBusMaster);
  CHECK(rig.host.finish_dma(true).opcode == kReady);
}

TEST_CASE("stop while a transfer is in flight: it lands where it was aimed and ends as ever") {
  DmaRig rig;
  SUBCASE("read") {
    rig.node().hold(Kind::Read);
    const Region region{kBuffer, 1024};
    rig.host.put_table(kTable, std::span(&region, 1));
    rig.host.start_dma(read_of(2), true);
    rig.node().wait_held(Kind::Read);
    rig.host.bm_out(kBmCommand, kBmToMemory);
    CHECK(rig.state() == 0);
    CHECK((rig.host.alternate_status() & kBsy) != 0);
    // A new start now is for the next command; the transfer that ends has no say in it.
    const Region next{kBuffer + 0x2000, 512};
    rig.host.put_table(kTable, std::span(&next, 1));
    rig.host.bm_out(kBmCommand, kBmToMemory | kBmStart);
    rig.node().release(Kind::Read);
    rig.host.line.wait_asserted();
    CHECK(rig.state() == (kBmActive | kBmInterrupt));
    CHECK(rig.host.result().opcode == kReady);
    CHECK(rig.ram_bytes(kBuffer, 1024) == rig.part(10, 1024));
    rig.host.issue(read_of(1, 77));
    CHECK(rig.host.finish_dma(true).opcode == kReady);
    CHECK((rig.host.bm_status & kState) == kBmInterrupt);
    CHECK(rig.ram_bytes(kBuffer + 0x2000, 512) == rig.part(77, 512));
  }
  SUBCASE("write") {
    rig.node().hold(Kind::Write);
    rig.fill(kBuffer, 1024, 5);
    const Region region{kBuffer, 1024};
    rig.host.put_table(kTable, std::span(&region, 1));
    Registers write = read_of(2, 900);
    write.opcode = 0x35;
    rig.host.start_dma(write, false);
    rig.node().wait_held(Kind::Write);
    rig.host.bm_out(kBmCommand, 0);
    rig.host.soft_reset();
    rig.node().release(Kind::Write);
    CHECK(rig.host.wait_not_busy() == kReady);
    CHECK(rig.node().bytes(900 * kSectorBytes, 1024) == Rig::pattern_bytes(5, 1024));
    CHECK(rig.node().bytes(0, 1024) == rig.part(0, 1024));
  }
}

TEST_CASE("the engine alone: a 64 KiB table of the smallest regions is walked to its end") {
  std::vector<uint8_t> ram(1u << 20);
  const GuestMemory memory({{.guest_address = 0, .size = ram.size(), .host = ram.data()}});
  for (uint32_t i = 0; i < 8192; ++i) {
    const uint32_t address = 0x40000 + 4 * i;
    const uint32_t rest = 2;
    std::memcpy(ram.data() + 0x10000 + 8 * i, &address, 4);
    std::memcpy(ram.data() + 0x10000 + 8 * i + 4, &rest, 4);
  }
  BusMaster engine(memory);
  engine.write(kBmTable + 2, 1);
  engine.write_command(kBmStart);
  std::vector<iovec> parts;
  CHECK(engine.gather(16384, parts) == BusMaster::Gathered::All);
  CHECK(parts.size() == 8192);
  CHECK(engine.gather(512, parts) == BusMaster::Gathered::BusError);
  CHECK_FALSE(engine.active());
}

// RAM as no PC has it: what keeps the engine within 32 bits must not be that there is no memory beyond.
TEST_CASE("the engine alone: neither a region nor a table goes on beyond 32 bits of address") {
  constexpr uint64_t kStart = 0xffff'0000;
  std::vector<uint8_t> ram(0x20000);
  const GuestMemory memory({{.guest_address = kStart, .size = ram.size(), .host = ram.data()}});
  const auto gather = [&](uint32_t table, const Region& region, bool end_marked) {
    const uint32_t entry[2] = {region.address, (region.bytes & 0xffff) | (end_marked ? 1u << 31 : 0)};
    std::memcpy(ram.data() + (table - kStart), entry, sizeof entry);
    BusMaster engine(memory);
    for (unsigned i = 0; i < 4; ++i) engine.write(kBmTable + i, static_cast<uint8_t>(table >> (8 * i)));
    engine.write_command(kBmStart);
    std::vector<iovec> parts;
    return engine.gather(512, parts);
  };
  CHECK(gather(kStart, {0xfffffe00, 512}, true) == BusMaster::Gathered::All);
  CHECK(gather(kStart, {0xfffffe02, 512}, true) == BusMaster::Gathered::BusError);
  CHECK(gather(kStart, {0xfffffffe, 0x10000}, true) == BusMaster::Gathered::BusError);
  CHECK(gather(0xfffffff8, {0xffff8000, 512}, true) == BusMaster::Gathered::All);
  CHECK(gather(0xfffffff8, {0xffff8000, 256}, false) == BusMaster::Gathered::BusError);
  CHECK(gather(0xfffffffc, {0xffff8000, 512}, true) == BusMaster::Gathered::BusError);
}

}  // namespace
}  // namespace spindle::ide::test
