// How host errors show: the right bits, the first bad sector, and every good sector before it delivered.
#include <doctest/doctest.h>

#include "devices/ide/test_driver.h"

namespace spindle::ide::test {
namespace {

constexpr uint32_t kBuffer = 0x20000;

struct ErrorRig : Rig {
  ErrorRig() : content(Rig::pattern_bytes(3, node().size())) { node().put(0, content); }
  std::vector<uint8_t> part(uint64_t lba, uint64_t sectors) const {
    const auto begin = content.begin() + static_cast<std::ptrdiff_t>(lba * kSectorBytes);
    return {begin, begin + static_cast<std::ptrdiff_t>(sectors * kSectorBytes)};
  }
  void bad(uint64_t lba) { node().fail(Kind::Read, lba * kSectorBytes, kSectorBytes); }
  std::vector<uint8_t> content;
};

TEST_CASE("DMA: UNC names the first bad sector, and what lies before it has arrived") {
  for (uint64_t bad : {1000u, 1001u, 1036u, 1037u, 1062u, 1063u}) {
    for (bool ext : {false, true}) {
      CAPTURE(bad);
      ErrorRig rig;
      HostDriver host = rig.driver();
      rig.bad(bad);
      rig.bad(1063);
      const Registers r{
          .opcode = static_cast<uint8_t>(ext ? 0x25 : 0xc8), .count = 64, .lba = 1000, .ext = ext};
      const Registers after = host.dma(r, true, kBuffer, 64 * kSectorBytes);
      CHECK(after.opcode == (kReady | kErr));
      CHECK(after.features == kUnc);
      CHECK(after.lba == bad);
      CHECK(after.count == 1064 - bad);
      CHECK((host.bm_status & kBmError) == 0);  // the bus did nothing wrong
      CHECK((host.bm_status & kBmInterrupt) != 0);
      CHECK((host.bm_status & kBmActive) != 0);  // the drive ended before the table did
      const uint64_t good = bad - 1000;
      CHECK(rig.ram_bytes(kBuffer, static_cast<uint32_t>(good * kSectorBytes)) == rig.part(1000, good));
      CHECK(rig.node().count(Kind::Read) <= 1 + 7);
      rig.node().heal();
      CHECK(host.dma(r, true, kBuffer, 64 * kSectorBytes).opcode == kReady);
    }
  }
}

TEST_CASE("PIO: a block with a bad sector comes with ERR, its good sectors, and zeroes") {
  ErrorRig rig;
  HostDriver host = rig.driver();
  rig.bad(20);
  std::vector<uint8_t> data(40 * kSectorBytes, 0xee);
  const Registers r{.opcode = 0xc4, .count = 40, .lba = 0};
  Registers after = host.pio_in(r, data, 16);
  CHECK(after.opcode == (kReady | kErr | kDrq));
  CHECK(after.features == kUnc);
  CHECK(after.lba == 20);
  CHECK(after.count == 20);
  CHECK(std::vector<uint8_t>(data.begin(), data.begin() + 20 * 512) == rig.part(0, 20));
  CHECK(std::all_of(data.begin() + 20 * 512, data.begin() + 32 * 512, [](uint8_t b) { return b == 0; }));
  CHECK(host.alternate_status() == (kReady | kErr));
  CHECK(rig.lines[0].level() == false);

  // The first sector of a block: no data.
  after = host.pio_in({.opcode = 0x20, .count = 4, .lba = 18}, data, 1);
  CHECK(after.opcode == (kReady | kErr));
  CHECK(after.lba == 20);
  CHECK(after.count == 2);
  CHECK(host.non_data({.opcode = 0xe5}).opcode == kReady);
}

TEST_CASE("READ VERIFY finds the bad sector too, also by CHS") {
  ErrorRig rig;
  HostDriver host = rig.driver();
  rig.bad(700);
  Registers after = host.non_data({.opcode = 0x42, .count = 1000, .lba = 3, .ext = true});
  CHECK(after.features == kUnc);
  CHECK(after.lba == 700);
  CHECK(after.count == 303);
  after = host.non_data({.opcode = 0x40, .count = 0, .lba = 600});
  CHECK(after.lba == 700);
  // 700 = (0 * 16 + 11) * 63 + 7: cylinder 0, head 11, sector 8.
  after = host.non_data({.opcode = 0x40, .count = 20, .lba = 1, .device = 11});
  CHECK(after.features == kUnc);
  CHECK(after.lba == 8);
  CHECK(after.device == 11);
}

TEST_CASE("a fault that does not come back is still reported, at the start of the request") {
  ErrorRig rig;
  HostDriver host = rig.driver();
  rig.node().fail(Kind::Read, 0, UINT64_MAX, ErrorKind::Io, 1);
  const Registers r{.opcode = 0xc8, .count = 8, .lba = 40};
  const Registers after = host.dma(r, true, kBuffer, 4096);
  CHECK(after.features == kUnc);
  CHECK(after.lba == 40);
  CHECK(after.count == 8);
  CHECK(host.dma(r, true, kBuffer, 4096).opcode == kReady);
}

TEST_CASE("write errors are ABRT at the start of what failed") {
  for (ErrorKind kind : {ErrorKind::Io, ErrorKind::NoSpace}) {
    ErrorRig rig;
    HostDriver host = rig.driver();
    rig.node().fail(Kind::Write, 50 * kSectorBytes, kSectorBytes, kind);
    Registers after = host.dma({.opcode = 0x35, .count = 8, .lba = 48, .ext = true}, false, kBuffer, 4096);
    CHECK(after.opcode == (kReady | kErr));
    CHECK(after.features == kAbrt);
    CHECK(after.lba == 48);
    // PIO: the blocks before are written, the registers name the one that is not.
    const auto data = Rig::pattern_bytes(8, 8 * kSectorBytes);
    after = host.pio_out({.opcode = 0x30, .count = 8, .lba = 48}, data);
    CHECK(after.features == kAbrt);
    CHECK(after.lba == 50);
    CHECK(after.count == 6);
    rig.node().heal();
    CHECK(host.pio_out({.opcode = 0x30, .count = 8, .lba = 48}, data).opcode == kReady);
  }
}

TEST_CASE("beyond the end: IDNF, and nothing is done") {
  ErrorRig rig;
  HostDriver host = rig.driver();
  const uint64_t end = rig.node().size() / kSectorBytes;
  rig.node().clear_log();
  struct Case {
    uint64_t lba, shown;
    uint16_t count;
  };
  for (const Case& c : {Case{end, end, 1}, Case{end - 1, end, 2}, Case{end - 255, end, 0},
                        Case{0x0ffffff0, 0x0ffffff0, 0xff}}) {
    for (uint8_t opcode : {0x20, 0x30, 0xc8, 0xca, 0x40}) {
      const Registers after = host.non_data({.opcode = opcode, .count = c.count, .lba = c.lba});
      CHECK(after.opcode == (kReady | kErr));
      CHECK(after.features == kIdnf);
      CHECK(after.lba == c.shown);
    }
  }
  for (uint64_t lba : {uint64_t{0xffffffffffff}, uint64_t{0x800000000000}, uint64_t{1} << 32, end - 1}) {
    for (uint8_t opcode : {0x24, 0x34, 0x25, 0x35, 0x3d, 0x42}) {
      const Registers after = host.non_data({.opcode = opcode, .count = 0, .lba = lba, .ext = true});
      CHECK(after.features == kIdnf);
      CHECK(after.lba == std::max(lba, end));
    }
  }
  CHECK(rig.node().log().empty());
}

TEST_CASE("a read-only disk answers writes with WP and ABRT") {
  Rig rig({.read_only = true});
  HostDriver host = rig.driver();
  for (uint8_t opcode : {0x30, 0x34, 0xc5, 0xca, 0x35, 0x3d}) {
    const Registers after = host.non_data({.opcode = opcode, .count = 1});
    CHECK(after.opcode == (kReady | kErr));
    CHECK(after.features == (kWp | kAbrt));
  }
  CHECK(rig.node().count(Kind::Write) == 0);
  CHECK(host.non_data({.opcode = 0xe7}).opcode == kReady);
}

}  // namespace
}  // namespace spindle::ide::test
