// Hosts that break the rules while the controller masters the bus: drives and heads changed under a command,
// starts for nobody, PRD regions that lie over each other.
#include <doctest/doctest.h>

#include <vector>

#include "devices/ide/test_driver.h"

namespace spindle::ide::test {
namespace {

constexpr uint32_t kBuffer = 0x20000;
constexpr uint32_t kTable = HostDriver::kTableAddress;
using Region = HostDriver::Region;

constexpr uint8_t kOtherDrive = kDeviceLba | kDeviceDev | 5;  // and another head

// All that a host could write to aim a command elsewhere.
void aim_elsewhere(HostDriver& host) {
  host.out(kDevice, kOtherDrive);
  for (unsigned offset = kFeatures; offset <= kLbaHigh; ++offset) host.out(offset, 0x77);
  host.out(kCommand, 0xca);
}

TEST_CASE("drive, head and address cannot be changed under a DMA command") {
  Rig rig({.places = {0, 1}});
  HostDriver host = rig.driver();
  rig.fill(kBuffer, 1024, 9);
  const Region region{kBuffer, 1024};
  host.put_table(kTable, std::span(&region, 1));
  SUBCASE("while it waits for the bus master") {
    host.bm_table(kTable);
    host.issue({.opcode = 0xca, .count = 2, .lba = 40});
    aim_elsewhere(host);
    host.bm_out(kBmCommand, kBmStart);
  }
  SUBCASE("while data moves") {
    rig.node(0).hold(Kind::Write);
    host.start_dma({.opcode = 0xca, .count = 2, .lba = 40}, false);
    rig.node(0).wait_held(Kind::Write);
    aim_elsewhere(host);
    rig.node(0).release(Kind::Write);
  }
  CHECK(host.finish_dma(false).opcode == kReady);
  CHECK((host.in(kDevice)&kDeviceDev) == 0);
  CHECK(rig.node(0).bytes(40 * kSectorBytes, 1024) == Rig::pattern_bytes(9, 1024));
  CHECK(rig.node(0).count(Kind::Write) == 1);
  CHECK(rig.node(1).log().empty());
}

TEST_CASE(
    "the bus master or the channel is taken away under a transfer in flight: it lands and ends as ever") {
  Rig rig;
  HostDriver host = rig.driver();
  const auto content = Rig::pattern_bytes(8, 1024);
  rig.node().put(30 * kSectorBytes, content);
  rig.node().hold(Kind::Read);
  const Region region{kBuffer, 1024};
  host.put_table(kTable, std::span(&region, 1));
  host.start_dma({.opcode = 0xc8, .count = 2, .lba = 30}, true);
  rig.node().wait_held(Kind::Read);
  SUBCASE("Bus Master of PCI Command") {
    rig.ide->write_config(pci::kCommand, 2, pci::kCommandIo);
    rig.node().release(Kind::Read);
  }
  SUBCASE("all of PCI Command, and the BAR elsewhere") {
    rig.ide->write_config(pci::kCommand, 2, 0);
    rig.ide->assign_bar(kBusMasterBar, 0xd000);
    rig.node().release(Kind::Read);
    host.line.wait_asserted();
    rig.power_up();
  }
  SUBCASE("the channel's decoding") {
    rig.ide->write_config(0x40, 2, 0);
    CHECK(host.alternate_status() == 0xff);
    rig.node().release(Kind::Read);
    host.line.wait_asserted();
    CHECK(host.in(kStatus) == 0xff);  // nor does that acknowledge the interrupt
    rig.ide->write_config(0x40, 2, 0x8000);
  }
  CHECK(host.finish_dma(false).opcode == kReady);
  CHECK((host.bm_status & (kBmActive | kBmInterrupt | kBmError)) == kBmInterrupt);
  CHECK(rig.ram_bytes(kBuffer, 1024) == content);
}

TEST_CASE("a start of the bus master without a drive that asks moves nothing, and can be stopped") {
  Rig rig;
  const Region region{kBuffer, 512};
  for (unsigned channel : {0u, 1u}) {  // a second drive that is absent; a channel without any
    HostDriver host = rig.driver(channel);
    host.put_table(kTable, std::span(&region, 1));
    host.start_dma({.opcode = 0xc8, .count = 1, .lba = 1, .device = kOtherDrive}, true);
    CHECK((host.bm_in(kBmStatus) & (kBmActive | kBmInterrupt | kBmError)) == kBmActive);
    host.bm_out(kBmCommand, 0);
    CHECK((host.bm_in(kBmStatus) & (kBmActive | kBmInterrupt | kBmError)) == 0);
    CHECK(rig.lines[channel].edges() == 0);
  }
  CHECK(rig.node().log().empty());
  CHECK(rig.ram_bytes(kBuffer, 512) == std::vector<uint8_t>(512));
}

TEST_CASE("regions may lie over each other, and over the table they stand in") {
  Rig rig;
  HostDriver host = rig.driver();
  const auto content = Rig::pattern_bytes(6, 4 * kSectorBytes);
  rig.node().put(0, content);
  const Registers read{.opcode = 0xc8, .count = 2, .lba = 0};
  const auto sector = [&](unsigned lba) {
    const auto begin = content.begin() + lba * kSectorBytes;
    return std::vector<uint8_t>(begin, begin + kSectorBytes);
  };
  const Region same[] = {{kBuffer, 512}, {kBuffer, 512}};
  CHECK(host.dma(read, true, same).opcode == kReady);
  CHECK(rig.ram_bytes(kBuffer, 512) == sector(1));
  // The first sector falls on the table, whose second entry has been read by then.
  const Region over_table[] = {{kTable, 512}, {kBuffer, 512}};
  CHECK(host.dma({.opcode = 0xc8, .count = 2, .lba = 2}, true, over_table).opcode == kReady);
  CHECK(rig.ram_bytes(kTable, 512) == sector(2));
  CHECK(rig.ram_bytes(kBuffer, 512) == sector(3));
}

}  // namespace
}  // namespace spindle::ide::test
