// Hosts that break the rules with a packet device: what hostile_test.cc, bus_master_test.cc and error_test.cc
// show of disks, where a packet device has a way of its own.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "devices/ide/commands.h"
#include "devices/ide/packet_driver.h"

namespace spindle::ide::test {
namespace {

constexpr uint32_t kBuffer = 0x20000;
constexpr uint32_t kTable = HostDriver::kTableAddress;
constexpr uint8_t kBmState = kBmActive | kBmInterrupt | kBmError;
using Region = HostDriver::Region;

/// A command by DMA, with the table as it is in memory.
void start(PacketHost& cd, const CdbBytes& cdb, uint32_t table = kTable) {
  cd.host.bm_out(kBmStatus, kBmInterrupt | kBmError | kBmDriveCapable);
  cd.host.bm_table(table);
  REQUIRE(cd.start(0, kPacketDma));
  cd.send(cdb);
  cd.host.bm_out(kBmCommand, kBmToMemory | kBmStart);
}

TEST_CASE(
    "packet: zero length is 64 KiB, regions cross 64 KiB boundaries, lie over each other and the table") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  const Region whole{kBuffer, 0x10000};
  cd.host.put_table(kTable, std::span(&whole, 1));
  start(cd, PacketHost::read10(3, 32));
  CHECK(cd.host.finish_dma(false).opcode == kReady);
  CHECK(rig.ram_bytes(kBuffer, 0x10000) == rig.part(3, 32));
  CHECK((cd.host.bm_status & kBmState) == kBmInterrupt);

  const Region crossing{0x2ff00, 4096};
  cd.host.put_table(kTable, std::span(&crossing, 1));
  start(cd, PacketHost::read10(50, 2));
  CHECK(cd.host.finish_dma(false).opcode == kReady);
  CHECK(rig.ram_bytes(0x2ff00, 4096) == rig.part(50, 2));

  const Region same[] = {{kBuffer, 2048}, {kBuffer, 2048}};
  cd.host.put_table(kTable, same);
  start(cd, PacketHost::read10(70, 2));
  CHECK(cd.host.finish_dma(false).opcode == kReady);
  CHECK(rig.ram_bytes(kBuffer, 2048) == rig.part(71, 1));

  const Region over_table[] = {{kTable, 2048}, {kBuffer, 2048}};
  cd.host.put_table(kTable, over_table);
  start(cd, PacketHost::read10(80, 2));
  CHECK(cd.host.finish_dma(false).opcode == kReady);
  CHECK(rig.ram_bytes(kTable, 2048) == rig.part(80, 1));
  CHECK(rig.ram_bytes(kBuffer, 2048) == rig.part(81, 1));
}

TEST_CASE("packet: a table of zeroes is 64 KiB regions at address 0, as far as they are needed") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  start(cd, PacketHost::read10(9, 1), 0x8000);
  cd.host.line.wait_asserted();
  CHECK((cd.host.bm_in(kBmStatus) & kBmState) == (kBmActive | kBmInterrupt));
  CHECK(rig.ram_bytes(0, 2048) == rig.part(9, 1));
}

TEST_CASE("packet: tables and regions that are no RAM are bus errors, and nothing moves") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  const auto ram_end = static_cast<uint32_t>(rig.ram.size());
  const CdbBytes read = PacketHost::read10(0, 1), inquiry{kInquiry, 0, 0, 0, 36};
  struct Case {
    const char* what;
    CdbBytes cdb;
    uint32_t table;
    std::vector<Region> regions;
    bool end_marked;
  };
  const Case cases[] = {
      {"a region that ends beyond RAM", read, kTable, {{ram_end - 1024, 2048}}, true},
      {"the second region beyond RAM", read, kTable, {{kBuffer, 1024}, {0xfffffffe, 1024}}, true},
      {"a region that wraps around", read, kTable, {{0xffffff00, 2048}}, true},
      {"a table beyond RAM", read, ram_end, {}, true},
      {"a table that runs out of its page", read, 0xfff8, {{kBuffer, 1024}}, false},
      {"a short answer, which ends beyond RAM", inquiry, kTable, {{ram_end - 16, 36}}, true},
      {"a short answer, its second half beyond RAM", inquiry, kTable, {{kBuffer, 18}, {ram_end, 18}}, true},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    if (!c.regions.empty()) cd.host.put_table(c.table, c.regions, c.end_marked);
    const auto before = rig.ram;
    const unsigned edges = rig.lines[0].edges();
    start(cd, c.cdb, c.table);
    CHECK((cd.host.bm_in(kBmStatus) & kBmState) == kBmError);
    CHECK((cd.host.alternate_status() & kBsy) != 0);
    CHECK(rig.lines[0].edges() == edges);
    CHECK((rig.ram == before));
    cd.host.bm_out(kBmCommand, 0);
    cd.host.out(kCommand, kDeviceReset);
    CHECK(cd.host.wait_not_busy() == 0);
  }
  CHECK(rig.node().count(Kind::Read) == 0);
}

TEST_CASE("packet: the bus master stops, or is taken away, while a transfer is in flight: it ends as ever") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  const Region region{kBuffer, 4096};
  rig.node().hold(Kind::Read);
  cd.start_dma(PacketHost::read10(20, 2), std::span(&region, 1));
  rig.node().wait_held(Kind::Read);
  SUBCASE("a stop, and a start for the next command") {
    cd.host.bm_out(kBmCommand, kBmToMemory);
    CHECK((cd.host.bm_in(kBmStatus) & kBmState) == 0);
    CHECK((cd.host.alternate_status() & kBsy) != 0);
    const Region next{kBuffer + 0x2000, 2048};
    cd.host.put_table(kTable, std::span(&next, 1));
    cd.host.bm_out(kBmCommand, kBmToMemory | kBmStart);
    rig.node().release(Kind::Read);
    cd.host.line.wait_asserted();
    CHECK((cd.host.bm_in(kBmStatus) & kBmState) == (kBmActive | kBmInterrupt));
    CHECK(cd.host.result().opcode == kReady);
    CHECK(rig.ram_bytes(kBuffer + 0x2000, 2048) == std::vector<uint8_t>(2048));
    REQUIRE(cd.start(0, kPacketDma));
    cd.send(PacketHost::read10(60, 1));
    CHECK(cd.host.finish_dma(false).opcode == kReady);
    CHECK(rig.ram_bytes(kBuffer + 0x2000, 2048) == rig.part(60, 1));
  }
  SUBCASE("PCI Command") {
    rig.ide->write_config(pci::kCommand, 2, 0);
    rig.node().release(Kind::Read);
    cd.host.line.wait_asserted();
    rig.power_up();
    CHECK(cd.host.finish_dma(false).opcode == kReady);
  }
  CHECK(rig.ram_bytes(kBuffer, 4096) == rig.part(20, 2));
}

TEST_CASE("packet: drive and command block cannot be changed under a DMA transfer") {
  DiscRig rig({.places = {1}, .discs = {0}});
  PacketHost cd(rig, 0);
  const Region region{kBuffer, 4096};
  const auto aim_elsewhere = [&] {
    cd.host.out(kDevice, kDeviceLba | kDeviceDev | 5);
    for (unsigned offset = kFeatures; offset <= kLbaHigh; ++offset) cd.host.out(offset, 0x77);
    cd.host.out(kCommand, 0xca);
    cd.send(PacketHost::read10(0, 30));  // DRQ is clear: nobody takes it
  };
  SUBCASE("while it waits for the bus master") {
    cd.host.put_table(kTable, std::span(&region, 1));
    cd.host.bm_table(kTable);
    REQUIRE(cd.start(0, kPacketDma));
    cd.send(PacketHost::read10(40, 2));
    aim_elsewhere();
    cd.host.bm_out(kBmCommand, kBmToMemory | kBmStart);
  }
  SUBCASE("while data moves") {
    rig.node(1).hold(Kind::Read);
    cd.start_dma(PacketHost::read10(40, 2), std::span(&region, 1));
    rig.node(1).wait_held(Kind::Read);
    aim_elsewhere();
    rig.node(1).release(Kind::Read);
  }
  CHECK(cd.host.finish_dma(false).opcode == kReady);
  CHECK((cd.host.in(kDevice)&kDeviceDev) == 0);
  CHECK(rig.ram_bytes(kBuffer, 4096) == rig.part(40, 2));
  CHECK(rig.node(1).count(Kind::Read) == 1);
  CHECK(rig.node(0).log().empty());
}

TEST_CASE("packet: commands to a drive that is not there start nothing") {
  DiscRig rig;
  for (unsigned channel : {0u, 1u}) {  // an absent device 1, an empty channel
    PacketHost nobody(rig, 2 * channel + 1);
    CHECK_FALSE((nobody.host.in(kStatus)&kBsy));
    for (uint8_t opcode : {uint8_t{0xa0}, uint8_t{0xa1}, kDeviceReset}) {
      nobody.host.issue({.opcode = opcode, .features = kPacketDma, .lba = 0x80000, .device = kDeviceDev});
      nobody.send(PacketHost::read10(0, 1));
      nobody.host.bm_out(kBmCommand, kBmToMemory | kBmStart);
      CHECK((nobody.host.alternate_status() & kBsy) == 0);
      nobody.host.bm_out(kBmCommand, 0);
    }
    CHECK(rig.lines[channel].edges() == 0);
  }
  CHECK(rig.node().log().empty());
  PacketHost cd(rig, 0);
  CHECK(cd.pio(PacketHost::read10(0, 1)).data == rig.part(0, 1));
}

TEST_CASE("packet: every ATA command to a packet device, and every packet command to a disk, aborts") {
  DiscRig rig({.places = {0}, .discs = {1}});
  HostDriver host = rig.driver();
  const auto aborts = [&](uint8_t opcode, uint8_t device) {
    CAPTURE(opcode);
    host.start_dma({.opcode = opcode, .count = 1, .device = device}, false);
    CHECK(host.alternate_status() == (kReady | kErr));
    CHECK(host.in(kError) == kAbrt);
    host.in(kStatus);
    host.bm_out(kBmCommand, 0);
  };
  unsigned foreign = 0;
  for (const Command& command : ata_commands()) {
    // Those that a packet device has too, and two that it answers by its signature, have their own tests.
    const Command* own = find_packet_device_command(command.opcode);
    if (own && own->opcode != 0xec && own->opcode != 0x20) continue;
    aborts(command.opcode, kDeviceDev | kDeviceLba);
    ++foreign;
  }
  CHECK(foreign > 30);
  for (uint8_t opcode : {uint8_t{0xa0}, uint8_t{0xa1}, uint8_t{0xa2}, kDeviceReset})
    aborts(opcode, kDeviceLba);
  CHECK(rig.node(0).log().empty());
  CHECK(rig.node(1).log().empty());
}

TEST_CASE("packet: one that reaches past the end by DMA asks for no memory and moves nothing") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  const auto blocks = static_cast<uint32_t>(rig.content.size() / kDiscBlockBytes);
  for (const CdbBytes& cdb :
       {PacketHost::read10(blocks, 1), PacketHost::read10(blocks - 1, 2), PacketHost::read10(0xffffffff, 2),
        PacketHost::read12(0xffffffff, 0xffffffff), PacketHost::read12(1, 0xffffffff),
        PacketHost::read12(0x80000000, 0x80000000)}) {
    const PacketAnswer answer = cd.dma(cdb, 0x10000);
    CHECK(answer.status == (kReady | kErr));
    CHECK((cd.host.bm_status & kBmState) == (kBmActive | kBmInterrupt));  // the engine was not asked
    CHECK(answer.data == std::vector<uint8_t>(0x10000));
    CHECK(cd.sense() == kBlockOutOfRange);
  }
  CHECK(rig.node().log().empty());
}

TEST_CASE("packet: a drive that is busy or asks for data shows nothing of the command before") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  CHECK(cd.pio(PacketHost::read10(5, 4)).good());
  // The data register of a drive without DRQ, and beyond a short answer.
  std::vector<uint8_t> beyond(4096, 0xee);
  cd.host.ide_.command_block(0).read_repeated(kData, beyond, 2);
  CHECK(beyond == std::vector<uint8_t>(4096));
  REQUIRE(cd.start(0xfffe));
  cd.host.ide_.command_block(0).read_repeated(kData, beyond, 2);  // it waits for a command block
  CHECK(beyond == std::vector<uint8_t>(4096));
  cd.send({kInquiry, 0, 0, 0, 7});
  cd.host.line.wait_asserted();
  std::ranges::fill(beyond, 0xee);
  cd.host.ide_.command_block(0).read_repeated(kData, beyond, 4);
  CHECK(beyond[4] == 31);
  CHECK(std::all_of(beyond.begin() + 7, beyond.end(), [](uint8_t byte) { return byte == 0; }));
  CHECK(cd.host.in(kStatus) == kReady);
}

}  // namespace
}  // namespace spindle::ide::test
