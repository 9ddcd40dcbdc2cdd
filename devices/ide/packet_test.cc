// The protocol of PACKET: its phases and registers, blocks of any size, DMA, resets, and hosts that break the
// rules.
#include <doctest/doctest.h>

#include <numeric>

#include "devices/ide/packet_driver.h"

namespace spindle::ide::test {
namespace {

constexpr uint32_t kBuffer = 0x20000;

void check_packet_signature(HostDriver& host) {
  CHECK(host.in(kSectorCount) == 1);
  CHECK(host.in(kLbaLow) == 1);
  CHECK(host.in(kLbaMid) == kPacketSignatureMid);
  CHECK(host.in(kLbaHigh) == kPacketSignatureHigh);
}

TEST_CASE("packet: signature and no DRDY until the first command") {
  DiscRig rig;
  HostDriver host = rig.driver();
  for (unsigned way = 0; way < 5; ++way) {
    CAPTURE(way);
    if (way == 1) host.soft_reset();
    if (way == 2) host.out(kCommand, kDeviceReset);
    if (way == 3) host.out(kCommand, kExecuteDeviceDiagnostic);
    if (way == 4) rig.ide->reset();
    if (way == 4) rig.power_up();
    host.wait_not_busy();
    check_packet_signature(host);
    CHECK(host.in(kError) == kDiagnosticPassed);
    CHECK(host.in(kStatus) == 0);
    std::vector<uint8_t> block(kSectorBytes);
    CHECK(host.pio_in({.opcode = 0xa1, .device = 0}, block).opcode == kReady);
    CHECK(host.alternate_status() == kReady);
  }
}

TEST_CASE("packet: IDENTIFY PACKET DEVICE") {
  DiscRig rig;
  HostDriver host = rig.driver();
  host.non_data({.opcode = 0xef, .features = kFeatureSetTransferMode, .count = 0x42, .device = 0});
  std::vector<uint8_t> block(kSectorBytes);
  CHECK(host.pio_in({.opcode = 0xa1, .device = 0}, block).opcode == kReady);
  std::vector<uint16_t> words(256);
  std::memcpy(words.data(), block.data(), block.size());
  CHECK(words[0] == 0x85c0);  // packet device, CD-ROM, removable, DRQ within 50 us, CDBs of 12 bytes
  CHECK(words[49] == 0x0b00);
  CHECK(words[82] == 0x4218);
  CHECK((words[88] & 0xff00) == 0x0400);
  CHECK(words[60] == 0);
  CHECK(std::accumulate(block.begin(), block.end(), 0u) % 256 == 0);
}

TEST_CASE("packet: commands for the other kind of device are aborted") {
  DiscRig rig({.places = {0}, .discs = {1}});
  HostDriver host = rig.driver();
  for (uint8_t opcode : {0xec, 0x20}) {
    const Registers after = host.non_data({.opcode = opcode, .count = 1, .device = kDeviceDev});
    CHECK(after.opcode == (kReady | kErr));
    CHECK(after.features == kAbrt);
    check_packet_signature(host);
  }
  for (uint8_t opcode :
       {0x24, 0x25, 0xc4, 0xc8, 0x30, 0x35, 0xca, 0x06, 0x40, 0xe7, 0x91, 0xb0, 0xf8, 0x00, 0xc6}) {
    const Registers after = host.non_data({.opcode = opcode, .count = 1, .device = kDeviceDev});
    CHECK(after.features == kAbrt);
  }
  for (uint8_t opcode : {0xa0, 0xa1, 0x08}) {
    const Registers after = host.non_data({.opcode = opcode});
    CHECK(after.opcode == (kReady | kErr));
    CHECK(after.features == kAbrt);
    CHECK(host.in(kLbaMid) == 0);
  }
  CHECK(host.identify(0)[0] == 0x0040);
}

TEST_CASE("packet: the phases show in the registers") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  REQUIRE(cd.start(0x800));
  CHECK(cd.host.alternate_status() == (kReady | kDrq));
  CHECK(cd.host.in(kSectorCount) == kReasonCommand);
  CHECK(rig.lines[0].level() == false);  // no interrupt for the command block
  cd.send(PacketHost::read10(3, 1));
  cd.host.line.wait_asserted();
  CHECK(cd.host.in(kSectorCount) == kReasonToHost);
  CHECK(cd.host.in(kStatus) == (kReady | kDrq));
  CHECK((cd.host.in(kLbaMid) | cd.host.in(kLbaHigh) << 8) == 0x800);
  const PacketAnswer rest = [&] {
    std::vector<uint8_t> data(0x800);
    cd.host.ide_.command_block(0).read_repeated(kData, data, 4);
    CHECK(data == rig.part(3, 1));
    return cd.finish();
  }();
  CHECK(rest.good());
  CHECK(rest.data.empty());
}

TEST_CASE("packet: PIO blocks keep to every limit, and the data is whole") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  for (uint32_t limit : {0xffffu, 0xfffeu, 0x8000u, 8192u, 2048u, 2047u, 1000u, 513u, 3u, 2u}) {
    const uint32_t count = limit < 100 ? 2 : 13;
    const PacketAnswer answer = cd.pio(PacketHost::read10(7, count), limit);
    CAPTURE(limit);
    CHECK(answer.good());
    CHECK(answer.data == rig.part(7, count));
    for (uint32_t bytes : answer.blocks) {
      CHECK(bytes <= limit);
      CHECK(bytes % 2 == 0);
      CHECK(bytes > 0);
    }
  }
  // Only a last block may be odd: here of an answer that is cut short.
  PacketAnswer answer = cd.pio({kInquiry, 0, 0, 0, 35}, 16);
  CHECK(answer.blocks == std::vector<uint32_t>{16, 16, 3});
  answer = cd.pio({kInquiry, 0, 0, 0, 5}, 5);
  CHECK(answer.blocks == std::vector<uint32_t>{5});
  CHECK(answer.data == std::vector<uint8_t>{0x05, 0x80, 0, 0x21, 31});
}

TEST_CASE("packet: a limit that moves no word aborts commands with data, and no others") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  for (uint32_t limit : {0u, 1u}) {
    for (const CdbBytes& cdb : {PacketHost::read10(0, 1), CdbBytes{kInquiry, 0, 0, 0, 36}}) {
      REQUIRE(cd.start(limit));
      cd.send(cdb);
      const PacketAnswer answer = cd.finish();
      CHECK(answer.status == (kReady | kErr));
      CHECK(answer.error == kAbrt);
    }
    CHECK(cd.pio({kTestUnitReady}, limit).good());
    CHECK(cd.pio({kInquiry, 0, 0, 0, 0}, limit).good());  // no room, so no data
    CHECK(cd.pio(PacketHost::read10(0, 0), limit).good());
  }
  CHECK(rig.node().count(Kind::Read) == 0);
}

TEST_CASE("packet: overlapped commands are not there") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  CHECK(!cd.start(2048, kPacketOverlap));
  CHECK(cd.host.in(kError) == kAbrt);
}

TEST_CASE("packet: DMA of blocks and of short answers") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  PacketAnswer answer = cd.dma(PacketHost::read10(100, 64), 64 * kDiscBlockBytes);
  CHECK(answer.good());
  CHECK(answer.data == rig.part(100, 64));
  CHECK((cd.host.bm_status & (kBmActive | kBmInterrupt | kBmError)) == kBmInterrupt);

  // More room than the answer takes: the rest of memory stays, and the engine waits for more.
  rig.fill(kBuffer, 64, 1);
  const auto before = rig.ram_bytes(kBuffer, 64);
  answer = cd.dma({kInquiry, 0, 0, 0, 5}, 64, kBuffer);
  CHECK(answer.good());
  CHECK(answer.data[0] == 0x05);
  CHECK(answer.data[4] == 31);
  CHECK(std::equal(answer.data.begin() + 5, answer.data.end(), before.begin() + 5));
  CHECK((cd.host.bm_status & (kBmActive | kBmInterrupt)) == (kBmActive | kBmInterrupt));

  // The bus moves words: after an odd number of bytes the table is used up, or goes on, behind the last one.
  // The byte that nobody sent stays.
  rig.fill(kBuffer, 64, 1);
  const HostDriver::Region exact{kBuffer, 36};
  cd.start_dma({kInquiry, 0, 0, 0, 35}, std::span(&exact, 1));
  CHECK(cd.host.finish_dma(false).opcode == kReady);
  CHECK((cd.host.bm_status & (kBmActive | kBmInterrupt)) == kBmInterrupt);
  CHECK(rig.ram[kBuffer + 35] == before[35]);
  rig.fill(kBuffer, 64, 1);
  const HostDriver::Region twice{kBuffer, 12};
  cd.start_dma({kInquiry, 0, 0, 0, 5}, std::span(&twice, 1));
  cd.host.line.wait_asserted();
  CHECK(cd.host.result().opcode == kReady);
  REQUIRE(cd.start(0, kPacketDma));
  cd.send({kInquiry, 0, 0, 0, 5});
  CHECK(cd.host.finish_dma(false).opcode == kReady);
  CHECK((cd.host.bm_status & (kBmActive | kBmInterrupt)) == kBmInterrupt);
  CHECK(rig.ram[kBuffer + 4] == 31);
  CHECK(rig.ram[kBuffer + 5] == before[5]);
  CHECK(rig.ram[kBuffer + 6] == 0x05);
  CHECK(rig.ram[kBuffer + 10] == 31);

  // A command without data ends all the same.
  CHECK(cd.dma({kTestUnitReady}, 64).good());
  CHECK(cd.dma(PacketHost::read10(1u << 30, 1), 2048).key() == 5);
  CHECK(cd.sense() == kBlockOutOfRange);
}

TEST_CASE("packet: a table that is too short moves nothing until there is a better one, or a reset") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  const HostDriver::Region small{kBuffer, 2048};
  cd.start_dma(PacketHost::read10(0, 2), std::span(&small, 1));
  CHECK((cd.host.bm_in(kBmStatus) & (kBmActive | kBmInterrupt)) == 0);
  CHECK((cd.host.alternate_status() & kBsy) != 0);
  CHECK(rig.ram_bytes(kBuffer, 2048) == std::vector<uint8_t>(2048));

  SUBCASE("a better table") {
    const HostDriver::Region enough{kBuffer, 8192};
    cd.host.put_table(HostDriver::kTableAddress, std::span(&enough, 1));
    cd.host.bm_out(kBmCommand, 0);
    cd.host.bm_out(kBmCommand, kBmToMemory | kBmStart);
    CHECK(cd.host.finish_dma(false).opcode == kReady);
    CHECK(rig.ram_bytes(kBuffer, 4096) == rig.part(0, 2));
  }
  SUBCASE("DEVICE RESET is heard by a busy device") {
    cd.host.out(kCommand, kDeviceReset);
    CHECK(cd.host.wait_not_busy() == 0);
    check_packet_signature(cd.host);
    CHECK(cd.pio(PacketHost::read10(9, 1)).data == rig.part(9, 1));
  }
  SUBCASE("an address that is no RAM") {
    cd.host.bm_out(kBmCommand, 0);
    const HostDriver::Region nowhere{0xfff00000, 8192};
    cd.host.put_table(HostDriver::kTableAddress, std::span(&nowhere, 1));
    cd.host.bm_out(kBmCommand, kBmToMemory | kBmStart);
    CHECK((cd.host.bm_in(kBmStatus) & kBmError) != 0);
    CHECK((cd.host.alternate_status() & kBsy) != 0);
    cd.host.soft_reset();
    CHECK(cd.host.wait_not_busy() == 0);
  }
}

TEST_CASE("packet: resets while data is on its way") {
  for (unsigned how = 0; how < 3; ++how) {
    for (bool dma : {false, true}) {
      CAPTURE(how);
      CAPTURE(dma);
      DiscRig rig({.places = {1}, .discs = {0}});
      PacketHost cd(rig, 0);
      const HostDriver::Region region{kBuffer, 4096};
      rig.node(1).hold(Kind::Read);
      if (dma) {
        cd.start_dma(PacketHost::read10(20, 2), std::span(&region, 1));
      } else {
        REQUIRE(cd.start(4096));
        cd.send(PacketHost::read10(20, 2));
      }
      rig.node(1).wait_held(Kind::Read);
      if (how == 0) cd.host.out(kCommand, kDeviceReset);
      if (how == 1) cd.host.soft_reset();
      if (how == 2) rig.ide->reset();
      if (how == 2) rig.power_up();
      // Memory is not the host's again while BSY is set.
      CHECK((cd.host.alternate_status() & kBsy) != 0);
      cd.host.out(kCommand, kDeviceReset);
      CHECK((cd.host.alternate_status() & kBsy) != 0);
      rig.node(1).release(Kind::Read);
      CHECK(cd.host.wait_not_busy() == 0);
      check_packet_signature(cd.host);
      CHECK(rig.lines[0].level() == false);
      CHECK(cd.pio(PacketHost::read10(30, 3)).data == rig.part(30, 3));
      cd.host.bm_out(kBmCommand, 0);
      // The disk beside it kept what it was told, or was reset with it.
      CHECK(cd.host.identify(1)[0] == 0x0040);
    }
  }
}

TEST_CASE("packet: no reset waits for a throttled read") {
  RigOptions options{.places = {}, .discs = {0}};
  options.throttling.rates[static_cast<std::size_t>(ThrottleKind::BpsTotal)].average = 4096 / 40;
  DiscRig rig(options);  // 40 seconds for each read
  PacketHost cd(rig, 0);
  const HostDriver::Region region{kBuffer, 4096};
  CHECK(cd.dma(PacketHost::read10(20, 2), 4096).good());
  unsigned reads = 1;
  for (bool device_reset : {true, false}) {
    for (bool dma : {false, true}) {
      CAPTURE(device_reset);
      CAPTURE(dma);
      if (dma) {
        cd.start_dma(PacketHost::read10(20, 2), std::span(&region, 1));
      } else {
        REQUIRE(cd.start(4096));
        cd.send(PacketHost::read10(20, 2));
      }
      CHECK(rig.throttled() == 1);
      CHECK((cd.host.alternate_status() & kBsy) != 0);
      if (device_reset) cd.host.out(kCommand, kDeviceReset);
      if (!device_reset) cd.host.soft_reset();
      CHECK(cd.host.wait_not_busy() == 0);
      CHECK(rig.node().count(Kind::Read) == ++reads);
      cd.host.bm_out(kBmCommand, 0);
    }
  }
}

TEST_CASE("packet: DEVICE RESET leaves the other device alone and may come in any phase") {
  DiscRig rig({.places = {1}, .discs = {0}});
  PacketHost cd(rig, 0);
  CHECK(cd.host
            .non_data(
                {.opcode = 0xef, .features = kFeatureSetTransferMode, .count = 0x45, .device = kDeviceDev})
            .opcode == kReady);
  const unsigned edges = rig.lines[0].edges();
  REQUIRE(cd.start(2048));
  const uint8_t half[6] = {kRead10};
  cd.host.ide_.command_block(0).write_repeated(kData, half, 2);  // a command block that breaks off
  cd.host.out(kCommand, kDeviceReset);
  CHECK(cd.host.wait_not_busy() == 0);
  check_packet_signature(cd.host);
  CHECK(rig.lines[0].edges() == edges);  // it gives no interrupt
  REQUIRE(cd.start(512));
  cd.send(PacketHost::read10(0, 1));
  cd.host.line.wait_asserted();
  uint8_t some[100];
  cd.host.ide_.command_block(0).read_repeated(kData, some, 2);
  cd.host.out(kCommand, kDeviceReset);
  CHECK(cd.host.wait_not_busy() == 0);
  CHECK(rig.lines[0].level() == false);
  CHECK(cd.pio({kTestUnitReady}).good());
  CHECK((cd.host.identify(1)[88] & 0xff00) == 0x2000);
}

TEST_CASE("packet: nothing the host writes meanwhile changes a transfer") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  REQUIRE(cd.start(1024));
  cd.host.out(kLbaMid, 2);  // the limit
  cd.host.out(kLbaHigh, 0);
  cd.host.out(kFeatures, kPacketDma);
  cd.host.out(kDevice, kDeviceDev);
  cd.host.out(kCommand, 0xa1);
  uint8_t cdb[20] = {};
  const CdbBytes wanted = PacketHost::read10(50, 4);
  std::copy(wanted.begin(), wanted.end(), cdb);
  cd.host.ide_.command_block(0).write_repeated(kData, cdb, 2);  // more than a command block
  cd.host.line.wait_asserted();
  cd.host.out(kLbaMid, 0xff);
  cd.host.out(kSectorCount, 0xff);
  cd.host.out(kCommand, 0xa0);
  const PacketAnswer answer = cd.finish();
  CHECK(answer.good());
  CHECK(answer.blocks == std::vector<uint32_t>(8, 1024));
  CHECK(answer.data == rig.part(50, 4));
}

TEST_CASE("packet: words and bytes through the data register") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  REQUIRE(cd.start(2048));
  // 32 bits at a time, as some hosts do.
  cd.send({kInquiry, 0, 0, 0, 36}, 4);
  CHECK(cd.finish().data.size() == 36);
  // A byte moves a word, whose upper half is lost.
  REQUIRE(cd.start(2048));
  for (unsigned i = 0; i < 6; ++i) cd.host.out(kData, i == 0 ? uint8_t{kTestUnitReady} : uint8_t{0});
  CHECK(cd.finish().good());
}

TEST_CASE("packet: PIO DRQ blocks of a DMA command do not exist, whatever Bus Master says") {
  DiscRig rig;
  PacketHost cd(rig, 0);
  rig.ide->write_config(pci::kCommand, 2, pci::kCommandIo);  // no bus master
  const HostDriver::Region region{kBuffer, 2048};
  cd.start_dma(PacketHost::read10(1, 1), std::span(&region, 1));
  CHECK((cd.host.alternate_status() & (kBsy | kDrq)) == kBsy);
  rig.power_up();
  CHECK(cd.host.finish_dma(false).opcode == kReady);
  CHECK(rig.ram_bytes(kBuffer, 2048) == rig.part(1, 1));
}

}  // namespace
}  // namespace spindle::ide::test
