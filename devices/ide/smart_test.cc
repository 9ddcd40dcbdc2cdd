// SMART: the commands and their key, what IDENTIFY claims, and that attributes, error log and status tell
// what happened.
#include "devices/ide/smart.h"

#include <doctest/doctest.h>

#include <cstring>
#include <numeric>
#include <optional>

#include "devices/ide/test_driver.h"

namespace spindle::ide::test {
namespace {

constexpr uint32_t kBuffer = 0x20000;
constexpr uint64_t kKey = 0xc24f00;
using Sector = std::vector<uint8_t>;

struct SmartRig : Rig {
  explicit SmartRig(RigOptions options = {}) : Rig(std::move(options)), host(driver()) {}

  static Registers command(uint16_t features, uint16_t count = 0, uint8_t lba_low = 0) {
    return {.opcode = 0xb0, .features = features, .count = count, .lba = kKey | lba_low};
  }
  Registers run(uint16_t features, uint16_t count = 0) { return host.non_data(command(features, count)); }
  bool aborts(const Registers& r) {
    const Registers after = host.non_data(r);
    return after.opcode == (kReady | kErr) && after.features == kAbrt;
  }
  Sector sector(const Registers& r) {
    Sector result(kSectorBytes, 0xee);
    CHECK(host.pio_in(r, result).opcode == kReady);
    return result;
  }
  Sector data() { return sector(command(0xd0, 1)); }
  Sector thresholds() { return sector(command(0xd1, 1)); }
  Sector log(uint8_t address) { return sector(command(0xd5, 1, address)); }

  HostDriver host;
};

bool sums_to_zero(const Sector& sector) {
  return (std::accumulate(sector.begin(), sector.end(), 0u) & 0xff) == 0;
}

struct Attribute {
  uint16_t flags = 0;
  uint8_t value = 0;
  uint64_t raw = 0;
};
std::optional<Attribute> attribute(const Sector& data, uint8_t id) {
  for (std::size_t at = 2; at < 362; at += 12) {
    if (data[at] != id) continue;
    Attribute result{.flags = static_cast<uint16_t>(data[at + 1] | data[at + 2] << 8), .value = data[at + 3]};
    for (std::size_t i = 6; i-- > 0;) result.raw = result.raw << 8 | data[at + 5 + i];
    return result;
  }
  return std::nullopt;
}

struct ErrorLog {
  uint8_t version, index;
  ErrorEntry entries[5];
  uint8_t count[2];
  uint8_t reserved[57], checksum;
};
static_assert(sizeof(ErrorLog) == kSectorBytes);
ErrorLog error_log(SmartRig& rig) {
  const Sector bytes = rig.log(1);
  CHECK(sums_to_zero(bytes));
  ErrorLog log;
  std::memcpy(&log, bytes.data(), sizeof(log));
  CHECK(log.version == 1);
  return log;
}

TEST_CASE("IDENTIFY claims SMART with error logging, and whether it is enabled") {
  SmartRig rig;
  auto words = rig.host.identify();
  CHECK((words[82] & 1) == 1);
  CHECK((words[84] & 3) == 1);  // error logging, no self-test
  CHECK((words[85] & 1) == 1);
  CHECK((words[87] & 3) == 1);
  CHECK(rig.run(0xd9).opcode == kReady);
  words = rig.host.identify();
  CHECK((words[82] & 1) == 1);
  CHECK((words[85] & 1) == 0);
  // Neither reset brings it back: ATA keeps this over power cycles.
  rig.host.soft_reset();
  rig.host.wait_not_busy();
  rig.ide->reset();
  rig.host.wait_not_busy();
  CHECK((rig.host.identify()[85] & 1) == 0);
  CHECK(rig.run(0xd8).opcode == kReady);
  CHECK((rig.host.identify()[85] & 1) == 1);
}

TEST_CASE("disabled, SMART takes no command but ENABLE OPERATIONS") {
  SmartRig rig;
  CHECK(rig.run(0xd9).opcode == kReady);
  for (unsigned features = 0; features < 256; ++features) {
    if (features != 0xd8) CHECK(rig.aborts(SmartRig::command(static_cast<uint16_t>(features), 1)));
  }
  // Nor does it count.
  rig.node().fail(Kind::Read);
  CHECK(rig.host.non_data({.opcode = 0x40, .count = 1}).features == kUnc);
  rig.node().heal();
  CHECK(rig.run(0xd8).opcode == kReady);
  CHECK(error_log(rig).index == 0);
  CHECK(attribute(rig.data(), 187)->raw == 0);
}

TEST_CASE("without its key, and with what it does not know, SMART aborts") {
  SmartRig rig;
  for (uint64_t key : {0x000000, 0x4fc200, 0xc24e00, 0xc34f00, 0x2cf400}) {
    for (uint16_t features : {0xd0, 0xd1, 0xd2, 0xd5, 0xd8, 0xd9, 0xda})
      CHECK(rig.aborts({.opcode = 0xb0, .features = features, .count = 1, .lba = key | 1}));
  }
  for (unsigned features = 0; features < 256; ++features) {
    switch (features) {
      case 0xd0:
      case 0xd1:
      case 0xd5:
      case 0xd8:
      case 0xd9:
      case 0xda:
        continue;
    }
    CHECK(rig.aborts(SmartRig::command(static_cast<uint16_t>(features), 1)));
  }
  for (uint16_t count : {0x01, 0x02, 0xf0, 0xff}) CHECK(rig.aborts(SmartRig::command(0xd2, count)));
  for (uint16_t count : {0x00, 0xf1}) CHECK(rig.run(0xd2, count).opcode == kReady);
  for (unsigned address = 0; address < 256; ++address) {
    const auto log = static_cast<uint8_t>(address);
    if (log != 0 && log != 1 && log != 6) CHECK(rig.aborts(SmartRig::command(0xd5, 1, log)));
    CHECK(rig.aborts(SmartRig::command(0xd5, 0, log)));
    CHECK(rig.aborts(SmartRig::command(0xd5, 2, log)));
  }
}

TEST_CASE("attributes are what the disk has done, and each has its threshold") {
  SmartRig rig;
  Sector data = rig.data();
  CHECK(sums_to_zero(data));
  CHECK(data[363] == 0);
  CHECK(data[367] == 0);  // no off-line collection, no self-test
  CHECK(data[370] == 1);  // error logging
  const Sector thresholds = rig.thresholds();
  CHECK(sums_to_zero(thresholds));
  for (std::size_t at = 2; at < 362; at += 12) CHECK(thresholds[at] == data[at]);
  CHECK(attribute(data, 12)->raw == 1);
  CHECK(attribute(data, 241)->raw == 0);
  CHECK(rig.host.dma({.opcode = 0xca, .count = 8}, false, kBuffer, 8 * 512).opcode == kReady);
  CHECK(rig.host.dma({.opcode = 0xc8, .count = 3}, true, kBuffer, 3 * 512).opcode == kReady);
  rig.ide->reset();
  rig.host.wait_not_busy();
  data = rig.data();
  CHECK(attribute(data, 9)->raw == 0);
  CHECK(attribute(data, 12)->raw == 2);
  CHECK(attribute(data, 241)->raw == 8);
  CHECK(attribute(data, 242)->raw == 3);
  CHECK(attribute(data, 187)->value == 100);
}

TEST_CASE("the error log has the error and the commands that led to it") {
  SmartRig rig;
  CHECK(error_log(rig).index == 0);
  rig.node().fail(Kind::Read, 1003 * kSectorBytes, kSectorBytes);
  rig.node().fail(Kind::Write, 50 * kSectorBytes, kSectorBytes);
  CHECK(rig.host.non_data({.opcode = 0xe5}).opcode == kReady);
  CHECK(rig.host.dma({.opcode = 0xc8, .count = 8, .lba = 1000}, true, kBuffer, 4096).features == kUnc);
  ErrorLog log = error_log(rig);
  CHECK(log.index == 1);
  CHECK(log.count[0] == 1);
  const ErrorEntry& unc = log.entries[0];
  CHECK(unc.error.error == kUnc);
  CHECK(unc.error.status == (kReady | kErr));
  CHECK(unc.error.lba_low == (1003 & 0xff));
  CHECK(unc.error.lba_mid == 1003 >> 8);
  CHECK(unc.error.count == 5);
  CHECK(unc.error.device == kDeviceLba);
  CHECK((unc.error.state & 0x0f) == 3);
  CHECK(unc.commands[4].command == 0xc8);
  CHECK(unc.commands[4].count == 8);
  CHECK(unc.commands[4].lba_low == (1000 & 0xff));
  CHECK(unc.commands[3].command == 0xe5);
  CHECK(unc.commands[2].command == 0xb0);
  CHECK(unc.commands[2].features == 0xd5);
  CHECK(unc.commands[2].lba_high == 0xc2);
  CHECK(unc.commands[1].command == 0);

  CHECK(rig.host.dma({.opcode = 0xca, .count = 8, .lba = 48}, false, kBuffer, 4096).features == kAbrt);
  log = error_log(rig);
  CHECK(log.index == 2);
  CHECK(log.entries[1].error.error == kAbrt);
  CHECK(log.entries[1].commands[4].command == 0xca);
  const Sector data = rig.data();
  CHECK(attribute(data, 187)->raw == 1);
  CHECK(attribute(data, 187)->value == 99);
  CHECK(attribute(data, 181)->raw == 1);
  CHECK(attribute(data, 181)->value == 100);  // an error, but not the end
}

TEST_CASE("only faults of the medium are logged, and the newest five are kept") {
  SmartRig rig;
  CHECK(rig.host.non_data({.opcode = 0xff}).features == kAbrt);
  CHECK(rig.host.non_data({.opcode = 0x40, .count = 1, .lba = 8192}).features == kIdnf);
  CHECK(rig.aborts(SmartRig::command(0xd5, 1, 0x99)));
  CHECK(error_log(rig).index == 0);
  rig.node().fail(Kind::Read, 0, 1u << 20);
  for (uint8_t i = 0; i < 123; ++i)
    CHECK(rig.host.non_data({.opcode = 0x40, .count = 1, .lba = i}).features == kUnc);
  const ErrorLog log = error_log(rig);
  CHECK(log.count[0] == 123);
  CHECK(log.index == 3);
  for (unsigned i = 0; i < 5; ++i) {
    const unsigned newest_first = (log.index - 1 + 5 - i) % 5;
    CHECK(log.entries[newest_first].error.lba_low == 122 - i);
  }
  CHECK(attribute(rig.data(), 187)->value == 1);
}

TEST_CASE("the other logs: the directory, and no self-test") {
  SmartRig rig;
  const Sector directory = rig.log(0);
  CHECK(directory[0] == 1);
  for (unsigned address = 1; address < 256; ++address)
    CHECK((directory[2 * address] | directory[2 * address + 1]) == (address == 1 || address == 6 ? 1 : 0));
  const Sector self_tests = rig.log(6);
  CHECK(sums_to_zero(self_tests));
  CHECK(self_tests[0] == 1);
  CHECK(self_tests[508] == 0);
}

TEST_CASE("D6: after a failed flush the drive says that it fails") {
  SmartRig rig;
  Registers after = rig.run(0xda);
  CHECK(after.opcode == kReady);
  CHECK((after.lba & 0xffff00) == 0xc24f00);
  CHECK(rig.host.dma({.opcode = 0xca, .count = 8}, false, kBuffer, 4096).opcode == kReady);
  rig.node().fail(Kind::Flush, 0, UINT64_MAX, ErrorKind::Io, 1);
  CHECK(rig.host.non_data({.opcode = 0xea}).features == kAbrt);
  after = rig.run(0xda);
  CHECK(after.opcode == kReady);
  CHECK((after.lba & 0xffff00) == 0x2cf400);
  const auto failures = attribute(rig.data(), 181);
  CHECK((failures->flags & 1) == 1);
  CHECK(failures->value <= 10);
  CHECK(failures->raw == 1);
  CHECK(error_log(rig).entries[0].commands[4].command == 0xea);
}

TEST_CASE("D6: with the cache off it is the write that tells") {
  SmartRig rig({.cache = CacheMode::Writethrough});
  rig.node().fail(Kind::Flush, 0, UINT64_MAX, ErrorKind::Io, 1);
  CHECK(rig.host.dma({.opcode = 0xca, .count = 8}, false, kBuffer, 4096).features == kAbrt);
  CHECK((rig.run(0xda).lba & 0xffff00) == 0x2cf400);
}

}  // namespace
}  // namespace spindle::ide::test
