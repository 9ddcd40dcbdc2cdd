// Resets at any moment: what was in flight lands where it was aimed, and its outcome is nobody's.
#include <doctest/doctest.h>

#include "devices/ide/test_driver.h"

namespace spindle::ide::test {
namespace {

constexpr uint32_t kBuffer = 0x20000;

void check_signature(HostDriver& host) {
  CHECK(host.in(kError) == kDiagnosticPassed);
  CHECK(host.in(kSectorCount) == 1);
  CHECK(host.in(kLbaLow) == 1);
  CHECK(host.in(kLbaMid) == 0);
  CHECK(host.in(kLbaHigh) == 0);
  CHECK((host.in(kDevice)&kDeviceDev) == 0);
  CHECK(host.in(kStatus) == kReady);
}

enum class How { Soft, SoftTwice, Machine };

void do_reset(Rig& rig, HostDriver& host, How how) {
  switch (how) {
    case How::Soft:
      host.soft_reset();
      break;
    case How::SoftTwice:
      host.soft_reset();
      host.soft_reset();
      break;
    case How::Machine:
      rig.ide->reset();
      rig.power_up();
      break;
  }
}

TEST_CASE("a reset during a DMA write neither moves nor loses it") {
  for (How how : {How::Soft, How::SoftTwice, How::Machine}) {
    Rig rig;
    HostDriver host = rig.driver();
    rig.fill(kBuffer, 4096, 9);
    const auto expected = rig.ram_bytes(kBuffer, 4096);
    rig.node().hold(Kind::Write);
    const HostDriver::Region region{kBuffer, 4096};
    host.put_table(HostDriver::kTableAddress, std::span(&region, 1));
    host.start_dma({.opcode = 0x35, .count = 8, .lba = 3000, .ext = true}, false);
    rig.node().wait_held(Kind::Write);
    do_reset(rig, host, how);
    CHECK((host.alternate_status() & kBsy) != 0);
    // A host that does not wait: nothing it writes now has an effect on what is in flight.
    host.issue({.opcode = 0xca, .count = 1, .lba = 0});
    CHECK((host.alternate_status() & kBsy) != 0);
    rig.node().release(Kind::Write);
    CHECK(host.wait_not_busy() == kReady);
    check_signature(host);
    CHECK(rig.lines[0].edges() == 0);
    CHECK(rig.node().bytes(3000 * kSectorBytes, 4096) == expected);
    CHECK(rig.node().bytes(0, 4096) == std::vector<uint8_t>(4096));  // CVE-2023-5088
    CHECK(rig.node().count(Kind::Write) == 1);
    std::vector<uint8_t> data(kSectorBytes);
    CHECK(host.pio_in({.opcode = 0x20, .count = 1, .lba = 3000}, data).opcode == kReady);
    CHECK(std::equal(data.begin(), data.end(), expected.begin()));
  }
}

TEST_CASE("a reset during a DMA read keeps BSY until memory is left alone") {
  for (How how : {How::Soft, How::SoftTwice, How::Machine}) {
    Rig rig;
    HostDriver host = rig.driver();
    rig.node().hold(Kind::Read);
    const HostDriver::Region region{kBuffer, 4096};
    host.put_table(HostDriver::kTableAddress, std::span(&region, 1));
    host.start_dma({.opcode = 0x25, .count = 8, .lba = 3000, .ext = true}, true);
    rig.node().wait_held(Kind::Read);
    do_reset(rig, host, how);
    CHECK((host.alternate_status() & kBsy) != 0);
    rig.node().release(Kind::Read);
    CHECK(host.wait_not_busy() == kReady);
    check_signature(host);
    CHECK(rig.lines[0].edges() == 0);
  }
}

TEST_CASE("a reset while the host moves a block forgets the block") {
  for (How how : {How::Soft, How::SoftTwice, How::Machine}) {
    Rig rig;
    HostDriver host = rig.driver();
    const auto data = Rig::pattern_bytes(2, kSectorBytes);
    host.issue({.opcode = 0x30, .count = 2, .lba = 9});
    CHECK((host.wait_not_busy() & kDrq) != 0);
    rig.ide->command_block(0).write_repeated(kData, std::span(data).first(510), 2);
    do_reset(rig, host, how);
    CHECK(host.wait_not_busy() == kReady);
    rig.ide->command_block(0).write_repeated(kData, std::span(data).first(2), 2);
    check_signature(host);
    CHECK(rig.node().count(Kind::Write) == 0);
  }
}

TEST_CASE("a reset between two blocks of a PIO write keeps the first") {
  Rig rig;
  HostDriver host = rig.driver();
  const auto data = Rig::pattern_bytes(2, kSectorBytes);
  rig.node().hold(Kind::Write);
  host.issue({.opcode = 0x30, .count = 2, .lba = 9});
  CHECK((host.wait_not_busy() & kDrq) != 0);
  rig.ide->command_block(0).write_repeated(kData, data, 2);
  rig.node().wait_held(Kind::Write);
  host.soft_reset();
  rig.ide->command_block(0).write_repeated(kData, std::vector<uint8_t>(512, 0xff), 2);
  rig.node().release(Kind::Write);
  CHECK(host.wait_not_busy() == kReady);
  check_signature(host);
  CHECK(rig.node().bytes(9 * kSectorBytes, kSectorBytes) == data);
  CHECK(rig.node().bytes(10 * kSectorBytes, kSectorBytes) == std::vector<uint8_t>(kSectorBytes));
}

TEST_CASE("a soft reset does not wait for a throttled command, and lends no more than that") {
  constexpr uint32_t kBytes = 4096;
  RigOptions options;
  options.throttling.rates[static_cast<std::size_t>(ThrottleKind::BpsTotal)].average = kBytes / 40;
  Rig rig(options);  // 40 seconds for each read
  HostDriver host = rig.driver();
  const Registers read{.opcode = 0xc8, .count = kBytes / kSectorBytes};
  CHECK(host.dma(read, true, kBuffer, kBytes).opcode == kReady);
  for (unsigned reads = 2; reads <= 3; ++reads) {
    host.start_dma(read, true);
    CHECK(rig.throttled() == 1);
    CHECK((host.alternate_status() & kBsy) != 0);
    host.soft_reset();
    CHECK(host.wait_not_busy() == kReady);
    check_signature(host);
    CHECK(rig.node().count(Kind::Read) == reads);
  }
}

TEST_CASE("BSY lasts as long as SRST is set, on both drives") {
  Rig rig({.places = {0, 1}});
  HostDriver host = rig.driver();
  host.select(1);
  host.control(kControlSrst);
  CHECK((host.alternate_status() & kBsy) != 0);
  host.select(1);  // ignored
  host.control(0);
  CHECK(host.alternate_status() == kReady);
  check_signature(host);
  host.select(1);
  CHECK(host.in(kStatus) == kReady);
  CHECK(host.in(kError) == kDiagnosticPassed);
  CHECK(rig.lines[0].edges() == 0);
}

TEST_CASE("a reset of a channel does not touch the other drive's transfer on the other channel") {
  Rig rig({.places = {0, 2}});
  HostDriver first = rig.driver(0);
  HostDriver second = rig.driver(1);
  rig.node(1).hold(Kind::Read);
  const HostDriver::Region region{kBuffer, 512};
  second.put_table(0x3000, std::span(&region, 1));
  second.start_dma({.opcode = 0xc8, .count = 1}, true, 0x3000);
  rig.node(1).wait_held(Kind::Read);
  first.soft_reset();
  CHECK(first.wait_not_busy() == kReady);
  CHECK((second.alternate_status() & kBsy) != 0);
  rig.node(1).release(Kind::Read);
  CHECK(second.finish_dma(false).opcode == kReady);
}

TEST_CASE("a failed write that a reset has passed over shows nowhere") {
  Rig rig;
  HostDriver host = rig.driver();
  rig.node().fail(Kind::Write);
  rig.node().hold(Kind::Write);
  const HostDriver::Region region{kBuffer, 512};
  host.put_table(HostDriver::kTableAddress, std::span(&region, 1));
  host.start_dma({.opcode = 0xca, .count = 1, .lba = 5}, false);
  rig.node().wait_held(Kind::Write);
  host.soft_reset();
  rig.node().release(Kind::Write);
  CHECK(host.wait_not_busy() == kReady);
  check_signature(host);
}

TEST_CASE("a DMA command that waits for the bus master is forgotten by a reset") {
  Rig rig;
  HostDriver host = rig.driver();
  const HostDriver::Region region{kBuffer, 512};
  host.put_table(HostDriver::kTableAddress, std::span(&region, 1));
  host.bm_table(HostDriver::kTableAddress);
  host.issue({.opcode = 0xca, .count = 1, .lba = 5});
  CHECK((host.alternate_status() & kBsy) != 0);
  host.soft_reset();
  CHECK(host.wait_not_busy() == kReady);
  host.bm_out(kBmCommand, kBmStart);
  CHECK(host.alternate_status() == kReady);
  CHECK(rig.node().count(Kind::Write) == 0);
  CHECK((host.bm_in(kBmStatus) & kBmActive) != 0);  // the engine waits for a drive that asks
}

TEST_CASE("EXECUTE DEVICE DIAGNOSTIC addresses both drives and interrupts once") {
  Rig rig({.places = {0, 1}});
  HostDriver host = rig.driver();
  host.select(1);
  host.out(kCommand, kExecuteDeviceDiagnostic);
  CHECK(rig.lines[0].level());
  check_signature(host);
  CHECK(rig.lines[0].edges() == 1);
}

TEST_CASE("machine reset takes back what the guest chose") {
  Rig rig;
  HostDriver host = rig.driver();
  host.non_data({.opcode = 0xc6, .count = 2});
  host.non_data({.opcode = 0xef, .features = kFeatureSetTransferMode, .count = kModeUltraDma | 2});
  host.non_data({.opcode = 0xef, .features = kFeatureDisableLookAhead});
  host.non_data({.opcode = 0x91, .count = 10, .device = 1});
  host.bm_table(0x4000);
  host.bm_out(kBmCommand, kBmStart);
  host.set_nien(true);
  host.control_ = 0;
  rig.ide->reset();
  rig.power_up();
  host.wait_not_busy();
  check_signature(host);
  CHECK(host.bm_in(kBmCommand) == 0);
  CHECK(host.bm_in(kBmStatus) == kBmDriveCapable);
  CHECK(host.bm_in(kBmTable + 1) == 0);
  const auto words = host.identify();  // nIEN is clear again: this waits for an interrupt
  CHECK(words[59] == 0x0110);
  CHECK(words[88] == 0x003f);
  CHECK((words[85] & 0x40) != 0);
  CHECK(words[55] == 16);
}

TEST_CASE("a soft reset after CCh takes back multiple mode and look-ahead; the transfer mode stays") {
  Rig rig;
  HostDriver host = rig.driver();
  host.non_data({.opcode = 0xc6, .count = 2});
  host.non_data({.opcode = 0xef, .features = kFeatureSetTransferMode, .count = kModeUltraDma | 2});
  host.non_data({.opcode = 0xef, .features = kFeatureDisableLookAhead});
  host.soft_reset();
  host.wait_not_busy();
  CHECK(host.identify()[59] == 0x0102);
  CHECK((host.identify()[85] & 0x40) == 0);
  host.non_data({.opcode = 0xef, .features = kFeatureEnableRevert});
  host.soft_reset();
  host.wait_not_busy();
  CHECK(host.identify()[59] == 0x0110);
  CHECK((host.identify()[85] & 0x40) != 0);
  CHECK(host.identify()[88] == 0x043f);
}

}  // namespace
}  // namespace spindle::ide::test
