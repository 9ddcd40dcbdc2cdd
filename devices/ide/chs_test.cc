// Cylinders, heads and sectors: the default translation, INITIALIZE DEVICE PARAMETERS, what IDENTIFY says of
// both, where CHS ends, and errors that are reported the way the command was addressed.
#include <doctest/doctest.h>

#include "block/filters/null_node.h"
#include "devices/ide/commands.h"
#include "devices/ide/test_driver.h"

namespace spindle::ide::test {
namespace {

struct Chs {
  uint32_t cylinder, head, sector;
  bool operator==(const Chs&) const = default;
};

Registers by_chs(uint8_t opcode, const Chs& at, uint16_t count = 1) {
  return {.opcode = opcode,
          .count = count,
          .lba = at.cylinder << 8 | at.sector,
          .device = static_cast<uint8_t>(at.head)};
}
Chs shown(const Registers& after) {
  CHECK((after.device & kDeviceLba) == 0);
  return {.cylinder = static_cast<uint32_t>(after.lba >> 8),
          .head = after.device & uint32_t{kDeviceHead},
          .sector = static_cast<uint32_t>(after.lba & 0xff)};
}
Registers translation(uint8_t heads, uint8_t sectors) {
  return {.opcode = 0x91, .count = sectors, .device = static_cast<uint8_t>(heads - 1)};
}
uint32_t wide(const std::vector<uint16_t>& words, unsigned first) {
  return words[first] | uint32_t{words[first + 1]} << 16;
}

TEST_CASE("every command that takes 28 bits takes CHS, in the translation in force") {
  Rig rig({.disk_bytes = 64u << 20});
  HostDriver host = rig.driver();
  std::vector<uint8_t> sector(kSectorBytes);
  const auto reads = [&](const Chs& at, uint64_t lba) {
    const auto bytes = Rig::pattern_bytes(static_cast<uint8_t>(lba), kSectorBytes);
    rig.node().put(lba * kSectorBytes, bytes);
    for (uint8_t opcode : {0x20, 0x21, 0xc4}) {
      CHECK(host.pio_in(by_chs(opcode, at), sector).opcode == kReady);
      CHECK(sector == bytes);
    }
    for (uint8_t opcode : {0xc8, 0xc9}) {
      CHECK(host.dma(by_chs(opcode, at), true, 0x20000, kSectorBytes).opcode == kReady);
      CHECK(rig.ram_bytes(0x20000, kSectorBytes) == bytes);
    }
    for (uint8_t opcode : {0x30, 0x31, 0xc5}) {
      const auto written = Rig::pattern_bytes(opcode, kSectorBytes);
      CHECK(host.pio_out(by_chs(opcode, at), written).opcode == kReady);
      CHECK(rig.node().bytes(lba * kSectorBytes, kSectorBytes) == written);
    }
  };
  reads({.cylinder = 0, .head = 0, .sector = 1}, 0);
  reads({.cylinder = 5, .head = 7, .sector = 9}, (5 * 16 + 7) * 63 + 8);
  CHECK(host.non_data(translation(4, 32)).opcode == kReady);
  reads({.cylinder = 5, .head = 3, .sector = 9}, (5 * 4 + 3) * 32 + 8);
  // Both at their widest.
  CHECK(host.non_data(translation(16, 255)).opcode == kReady);
  reads({.cylinder = 5, .head = 15, .sector = 255}, (5 * 16 + 15) * 255 + 254);
}

TEST_CASE("IDENTIFY shows the default translation and the one in force") {
  Rig rig({.disk_bytes = 64u << 20});  // 131,072 sectors
  HostDriver host = rig.driver();
  const auto check = [&](uint32_t cylinders, uint32_t heads, uint32_t sectors) {
    const auto words = host.identify();
    CHECK(words[1] == 130);
    CHECK(words[3] == 16);
    CHECK(words[6] == 63);
    CHECK((words[53] & 1) == 1);
    CHECK(words[54] == cylinders);
    CHECK(words[55] == heads);
    CHECK(words[56] == sectors);
    CHECK(wide(words, 57) == cylinders * heads * sectors);
  };
  check(130, 16, 63);
  CHECK(host.non_data(translation(4, 32)).opcode == kReady);
  check(1024, 4, 32);
  CHECK(host.non_data(translation(1, 1)).opcode == kReady);
  check(65535, 1, 1);

  // A track without sectors is no translation: nothing changes.
  const Registers refused = host.non_data(translation(8, 0));
  CHECK(refused.opcode == (kReady | kErr));
  CHECK(refused.features == kAbrt);
  check(65535, 1, 1);

  // A soft reset keeps it, after SET FEATURES CCh it does not; a machine reset never does.
  host.soft_reset();
  host.wait_not_busy();
  check(65535, 1, 1);
  CHECK(host.non_data({.opcode = 0xef, .features = kFeatureEnableRevert}).opcode == kReady);
  host.soft_reset();
  host.wait_not_busy();
  check(130, 16, 63);
  CHECK(host.non_data(translation(4, 32)).opcode == kReady);
  rig.ide->reset();
  host.wait_not_busy();
  check(130, 16, 63);
}

TEST_CASE("addresses that do not exist are IDNF, and stay in the registers") {
  Rig rig;  // 8,192 sectors: 8 cylinders, and 128 sectors that CHS does not reach
  HostDriver host = rig.driver();
  for (const Chs& at : {Chs{0, 0, 0}, Chs{0, 0, 64}, Chs{8, 0, 1}, Chs{0xffff, 15, 63}}) {
    for (uint8_t opcode : {0x20, 0x30, 0xc8, 0xca, 0x40, 0x41}) {
      const Registers after = host.non_data(by_chs(opcode, at));
      CHECK(after.opcode == (kReady | kErr));
      CHECK(after.features == kIdnf);
      CHECK(shown(after) == at);
    }
  }
  CHECK(host.non_data(translation(4, 63)).opcode == kReady);
  CHECK(host.non_data(by_chs(0x40, {0, 4, 1})).features == kIdnf);
  CHECK(rig.node().log().empty());
}

TEST_CASE("a request that leaves the last cylinder names the sector behind it, and does nothing") {
  Rig rig;
  HostDriver host = rig.driver();
  for (uint8_t opcode : {0x20, 0x30, 0xc8, 0xca, 0x40}) {
    const Registers after = host.non_data(by_chs(opcode, {7, 15, 63}, 2));
    CHECK(after.features == kIdnf);
    CHECK(shown(after) == Chs{8, 0, 1});
  }
  CHECK(rig.node().log().empty());
  CHECK(host.non_data(by_chs(0x40, {7, 15, 63})).opcode == kReady);
}

TEST_CASE("a bad sector is reported by CHS if it was asked for so") {
  Rig rig;
  HostDriver host = rig.driver();
  rig.node().fail(Kind::Read, 700 * kSectorBytes, kSectorBytes);  // cylinder 0, head 11, sector 8
  for (uint8_t opcode : {0x40, 0x41}) {
    const Registers after = host.non_data(by_chs(opcode, {0, 11, 1}, 20));
    CHECK(after.features == kUnc);
    CHECK(shown(after) == Chs{0, 11, 8});
    CHECK(after.count == 13);
  }
  CHECK(host.non_data(translation(2, 10)).opcode == kReady);
  const Registers after = host.dma(by_chs(0xc8, {34, 0, 1}, 40), true, 0x20000, 40 * kSectorBytes);
  CHECK(after.features == kUnc);
  CHECK(shown(after) == Chs{35, 0, 1});
  CHECK(after.count == 20);
  CHECK(host.non_data({.opcode = 0x41, .count = 1, .lba = 700}).lba == 700);
}

TEST_CASE("a large disk: CHS and 28 bits reach a part of it") {
  auto reactor = *Reactor::create();
  const auto node = std::make_shared<NullNode>(*reactor, NullNode::Options{.size = 3ull << 40});
  Drive drive(std::make_shared<Disk>(node, DiskOptions{.id = "null"}), {}, 0);
  CHECK(drive.default_geometry().cylinders == 16383);
  CHECK(drive.geometry().capacity() == 16514064);
  drive.settings.heads = 1;
  drive.settings.sectors_per_track = 255;
  CHECK(drive.geometry().cylinders == 64761);
  drive.settings.sectors_per_track = 1;
  CHECK(drive.geometry().cylinders == 65535);

  const Command& read = *find_ata_command(0x20);
  TaskFile registers;
  registers.count.current = 1;
  registers.device = kDeviceLba;
  registers.set_lba28(kMaxLba28Sectors - 1);
  CHECK(read.parse(drive, read, registers).has_value());
  registers.count.current = 2;
  CHECK(read.parse(drive, read, registers).error().lba == kMaxLba28Sectors);
  registers.device = 0;
  registers.lba_low.current = 1;
  registers.lba_mid.current = 0xfe;
  registers.lba_high.current = 0xff;
  registers.count.current = 1;
  CHECK(read.parse(drive, read, registers)->lba == 65534);
  registers.count.current = 2;
  CHECK(read.parse(drive, read, registers).error().lba == 65535);
}

}  // namespace
}  // namespace spindle::ide::test
