// The register file: probing, absent drives, HOB, nIEN, interrupts, commands that abort, hosts that
// misbehave.
#include <doctest/doctest.h>

#include "block/filters/null_node.h"
#include "devices/ide/commands.h"
#include "devices/ide/test_driver.h"

namespace spindle::ide::test {
namespace {

// libata's ata_devchk.
bool answers(HostDriver& host, unsigned unit) {
  host.select(unit);
  for (auto [count, low] : {std::pair{0x55, 0xaa}, {0xaa, 0x55}, {0x55, 0xaa}}) {
    host.out(kSectorCount, static_cast<uint8_t>(count));
    host.out(kLbaLow, static_cast<uint8_t>(low));
  }
  return host.in(kSectorCount) == 0x55 && host.in(kLbaLow) == 0xaa;
}

// ata_sff_softreset and ata_sff_dev_classify: which devices does Linux find?
std::pair<bool, bool> probe(HostDriver& host) {
  CHECK((host.alternate_status() & kBsy) == 0);  // or Linux waits up to two seconds for an empty channel
  answers(host, 0);
  const bool second_answers = answers(host, 1);
  host.select(0);
  host.soft_reset();
  host.wait_not_busy();
  if (second_answers) {
    host.select(1);
    CHECK(host.in(kSectorCount) == 1);
    CHECK(host.in(kLbaLow) == 1);
    host.wait_not_busy();
  }
  const auto present = [&](unsigned unit) {
    host.select(unit);
    const uint8_t error = host.in(kError);
    if (error != 1) return false;
    if (host.in(kLbaMid) != 0 || host.in(kLbaHigh) != 0) return false;
    return host.in(kStatus) != 0;
  };
  const bool first = present(0);
  return {first, present(1)};
}

TEST_CASE("Linux finds exactly the drives that are there") {
  struct Case {
    std::vector<unsigned> places;
    std::pair<bool, bool> found;
  };
  const Case cases[] = {
      {{0}, {true, false}}, {{0, 1}, {true, true}}, {{1}, {false, true}}, {{2}, {false, false}}};
  for (const Case& c : cases) {
    Rig rig({.places = c.places});
    HostDriver host = rig.driver();
    const auto found = probe(host);
    CHECK(found == c.found);
    CHECK(rig.lines[0].edges() == 0);
  }
}

TEST_CASE("an absent device 1 shows status 0, ignores commands, and takes the diagnostic") {
  Rig rig;
  HostDriver host = rig.driver();
  host.select(1);
  CHECK(host.in(kStatus) == 0);
  host.out(kCommand, 0xec);
  CHECK(host.alternate_status() == 0);
  CHECK_FALSE(rig.lines[0].level());
  host.out(kCommand, kExecuteDeviceDiagnostic);
  CHECK(rig.lines[0].level());
  CHECK(host.in(kStatus) == kReady);  // device 0 is selected now
  CHECK(host.in(kError) == kDiagnosticPassed);
}

TEST_CASE("an empty channel floats, with DD7 pulled down") {
  Rig rig;
  HostDriver host = rig.driver(1);
  for (unsigned unit : {0u, 1u}) {
    host.select(unit);
    CHECK(host.in(kStatus) == 0x7f);
    CHECK(host.alternate_status() == 0x7f);
    CHECK(host.in(kSectorCount) == 0x7f);
  }
  host.out(kCommand, 0xec);
  host.soft_reset();
  host.out(kCommand, kExecuteDeviceDiagnostic);
  CHECK(rig.lines[1].edges() == 0);
  std::vector<uint8_t> data(64);
  rig.ide->command_block(1).read_repeated(kData, data, 2);
}

TEST_CASE("both drives take register writes, HOB shows the previous values") {
  Rig rig({.places = {0, 1}});
  HostDriver host = rig.driver();
  for (unsigned offset : {kSectorCount, kLbaLow, kLbaMid, kLbaHigh}) {
    host.out(offset, static_cast<uint8_t>(0x10 + offset));
    host.out(offset, static_cast<uint8_t>(0x20 + offset));
  }
  for (unsigned unit : {0u, 1u}) {
    host.select(unit);
    host.control(kControlHob);
    for (unsigned offset : {kSectorCount, kLbaLow, kLbaMid, kLbaHigh})
      CHECK(host.in(offset) == 0x10 + offset);
    host.control(0);
    for (unsigned offset : {kSectorCount, kLbaLow, kLbaMid, kLbaHigh})
      CHECK(host.in(offset) == 0x20 + offset);
  }
  // Any write to the command block ends it.
  host.control(kControlHob);
  host.select(0);
  CHECK(host.in(kSectorCount) == 0x20 + kSectorCount);
}

TEST_CASE("Status acknowledges the interrupt, Alternate Status does not") {
  Rig rig;
  HostDriver host = rig.driver();
  host.issue({.opcode = 0xe5});
  CHECK(rig.lines[0].level());
  CHECK(host.alternate_status() == kReady);
  CHECK(rig.lines[0].level());
  CHECK((host.bm_in(kBmStatus) & kBmInterrupt) != 0);
  CHECK(host.in(kStatus) == kReady);
  CHECK_FALSE(rig.lines[0].level());
  CHECK(host.in(kSectorCount) == kPowerActive);
  // A new command takes the old interrupt away and makes a new edge.
  host.issue({.opcode = 0xe5});
  host.issue({.opcode = 0xe5});
  CHECK(rig.lines[0].edges() == 3);
}

TEST_CASE("nIEN keeps the line down and loses nothing") {
  Rig rig;
  HostDriver host = rig.driver();
  host.set_nien(true);
  host.issue({.opcode = 0xe5});
  CHECK_FALSE(rig.lines[0].level());
  CHECK((host.bm_in(kBmStatus) & kBmInterrupt) == 0);
  host.set_nien(false);
  CHECK(rig.lines[0].level());
  CHECK((host.bm_in(kBmStatus) & kBmInterrupt) != 0);
  host.set_nien(true);
  CHECK_FALSE(rig.lines[0].level());
  CHECK(host.in(kStatus) == kReady);
  host.set_nien(false);
  CHECK_FALSE(rig.lines[0].level());
}

TEST_CASE("the selected drive owns the line") {
  Rig rig({.places = {0, 1}});
  HostDriver host = rig.driver();
  host.issue({.opcode = 0xe5});
  CHECK(rig.lines[0].level());
  host.select(1);
  CHECK_FALSE(rig.lines[0].level());
  CHECK(host.in(kStatus) == kReady);
  host.select(0);
  CHECK(rig.lines[0].level());
}

TEST_CASE("unknown commands abort at once") {
  Rig rig;
  HostDriver host = rig.driver();
  unsigned unknown = 0;
  for (unsigned opcode = 0; opcode < 256; ++opcode) {
    if (find_ata_command(static_cast<uint8_t>(opcode))) continue;
    ++unknown;
    CAPTURE(opcode);
    const Registers after = host.non_data({.opcode = static_cast<uint8_t>(opcode)});
    CHECK(after.opcode == (kReady | kErr));
    CHECK(after.features == kAbrt);
  }
  CHECK(unknown > 150);
  CHECK(host.non_data({.opcode = 0}).features == kAbrt);  // NOP
  CHECK(host.identify()[0] == 0x0040);
}

TEST_CASE("what belongs to feature sets that are not there aborts, moves no data and changes nothing") {
  struct Row {
    const char* name;
    uint8_t opcode;
  };
  constexpr Row kAbsent[] = {
      {"DEVICE RESET", 0x08},  // of ATAPI devices
      {"PACKET", 0xa0},
      {"IDENTIFY PACKET DEVICE", 0xa1},
      {"SERVICE", 0xa2},  // queued commands
      {"READ DMA QUEUED", 0xc7},
      {"WRITE DMA QUEUED", 0xcc},
      {"SECURITY SET PASSWORD", 0xf1},
      {"SECURITY UNLOCK", 0xf2},
      {"SECURITY ERASE PREPARE", 0xf3},
      {"SECURITY ERASE UNIT", 0xf4},
      {"SECURITY FREEZE LOCK", 0xf5},
      {"SECURITY DISABLE PASSWORD", 0xf6},
      {"SET MAX ADDRESS", 0xf9},  // host protected area
      {"SET MAX ADDRESS EXT", 0x37},
      {"DEVICE CONFIGURATION", 0xb1},
      {"SANITIZE DEVICE", 0xb4},
      {"READ LOG EXT", 0x2f},  // general purpose logging
      {"WRITE LOG EXT", 0x3f},
      {"DOWNLOAD MICROCODE", 0x92},
      {"READ BUFFER", 0xe4},
      {"WRITE BUFFER", 0xe8},
      {"READ LONG", 0x22},
      {"WRITE LONG", 0x32},
      {"FORMAT TRACK", 0x50},
      {"WRITE UNCORRECTABLE EXT", 0x45},
      {"TRUSTED SEND", 0x5e},
      {"MEDIA EJECT", 0xed},
      {"GET MEDIA STATUS", 0xda},
      {"CFA ERASE SECTORS", 0xc0},
  };
  Rig rig;
  HostDriver host = rig.driver();
  const auto before = host.identify();
  for (const Row& row : kAbsent) {
    CAPTURE(row.name);
    const Registers after = host.non_data({.opcode = row.opcode, .features = 1, .count = 1, .lba = 0x123456});
    CHECK(after.opcode == (kReady | kErr));  // DRQ clear: no data is asked for, none offered
    CHECK(after.features == kAbrt);
    CHECK(after.lba == 0x123456);
    CHECK(after.count == 1);
  }
  CHECK(host.identify() == before);
  CHECK((before[82] & 0x0602) == 0);  // no DEVICE RESET, no HPA, no security
  CHECK((before[83] & 0x0902) == 0);  // no DCO, no SET MAX security, no queue
  CHECK(before[128] == 0);
  CHECK(rig.node().log().empty());
}

TEST_CASE("READ NATIVE MAX ADDRESS gives the last sector, in the way it was asked") {
  Rig rig;  // 8,192 sectors
  HostDriver host = rig.driver();
  Registers after = host.non_data({.opcode = 0xf8});
  CHECK(after.opcode == kReady);
  CHECK(after.lba == 8191);
  after = host.non_data({.opcode = 0x27, .lba = 0xa5a5a5a5a5a5, .ext = true});
  CHECK(after.opcode == kReady);
  CHECK(after.lba == 8191);  // HOB shows zeroes, not what was written
  after = host.non_data({.opcode = 0xf8, .device = 0});
  CHECK(after.opcode == kReady);
  CHECK(after.lba == (7 << 8 | 63));  // cylinder 7, head 15, sector 63
  CHECK(after.device == 15);

  auto reactor = *Reactor::create();
  const auto answer = [&](uint64_t bytes, uint8_t opcode, uint8_t device) {
    const auto node = std::make_shared<NullNode>(*reactor, NullNode::Options{.size = bytes});
    const Drive drive(std::make_shared<Disk>(node, DiskOptions{.id = "null"}), {}, 0);
    const Command& command = *find_ata_command(opcode);
    TaskFile registers;
    registers.device = device;
    const auto request = command.parse(drive, command, registers);
    return request ? std::optional(request->lba) : std::nullopt;
  };
  CHECK(answer(3ull << 40, 0x27, kDeviceLba) == (3ull << 40) / 512 - 1);
  CHECK(answer(3ull << 40, 0xf8, kDeviceLba) == 0x0ffffffe);
  CHECK(answer(3ull << 40, 0xf8, 0) == 16514063);
  CHECK(answer(512, 0xf8, kDeviceLba) == 0);
  for (uint8_t opcode : {0x27, 0xf8}) CHECK_FALSE(answer(0, opcode, kDeviceLba).has_value());
  CHECK_FALSE(answer(512, 0xf8, 0).has_value());  // not one cylinder
}

TEST_CASE("the power commands") {
  Rig rig;
  HostDriver host = rig.driver();
  const auto mode = [&] { return host.non_data({.opcode = 0xe5}).count; };
  const auto run = [&](uint8_t opcode) { return host.non_data({.opcode = opcode}).opcode; };
  CHECK(mode() == kPowerActive);
  for (uint8_t opcode : {0xe0, 0xe2, 0x94, 0x96}) {
    CHECK(run(opcode) == kReady);
    CHECK(mode() == kPowerStandby);
  }
  for (uint8_t opcode : {0xe1, 0xe3, 0x95, 0x97}) {
    CHECK(run(opcode) == kReady);
    CHECK(mode() == kPowerIdle);
  }
  CHECK(host.non_data({.opcode = 0x40, .count = 1}).opcode == kReady);
  CHECK(mode() == kPowerActive);
  CHECK(run(0xe6) == kReady);
  CHECK(host.non_data({.opcode = 0xec}).features == kAbrt);  // asleep
  host.soft_reset();
  CHECK(mode() == kPowerStandby);
}

TEST_CASE("a drive about to spin down writes its cache out") {
  Rig rig;
  HostDriver host = rig.driver();
  const auto data = Rig::pattern_bytes(1, kSectorBytes);
  CHECK(host.pio_out({.opcode = 0x30, .count = 1}, data).opcode == kReady);
  CHECK(rig.node().durable(0, kSectorBytes) != data);
  CHECK(host.non_data({.opcode = 0xe0}).opcode == kReady);
  CHECK(rig.node().durable(0, kSectorBytes) == data);
  CHECK(rig.disk().counters().flush_requests.value() == 1);
}

TEST_CASE("registers do not change under a transfer") {
  Rig rig({.places = {0, 1}});
  HostDriver host = rig.driver();
  host.issue({.opcode = 0x30, .count = 2, .lba = 7});
  CHECK((host.wait_not_busy() & kDrq) != 0);
  const auto data = Rig::pattern_bytes(4, 2 * kSectorBytes);
  rig.ide->command_block(0).write_repeated(kData, std::span(data).first(100), 2);
  for (unsigned offset = kFeatures; offset <= kCommand; ++offset) host.out(offset, 0xb0);
  rig.ide->command_block(0).write_repeated(kData, std::span(data).subspan(100, 412), 4);
  host.line.wait_asserted();
  for (unsigned offset = kFeatures; offset <= kCommand; ++offset) host.out(offset, 0xb0);
  rig.ide->command_block(0).write_repeated(kData, std::span(data).subspan(512), 2);
  CHECK(host.wait_not_busy() == kReady);
  CHECK(rig.node(0).bytes(7 * kSectorBytes, data.size()) == data);
  CHECK(rig.node(1).log().empty());
}

TEST_CASE("a repeated access that outlasts its block reads nothing more") {
  Rig rig;
  HostDriver host = rig.driver();
  std::vector<uint8_t> data(4 * kSectorBytes, 0xee);
  host.issue({.opcode = 0xec});
  rig.ide->command_block(0).read_repeated(kData, data, 2);
  CHECK(data[0] == 0x40);
  CHECK(std::all_of(data.begin() + kSectorBytes, data.end(), [](uint8_t byte) { return byte == 0; }));
  CHECK(host.in(kStatus) == kReady);
}

TEST_CASE("the PCI function is the one Linux looks for") {
  Rig rig;
  CHECK(rig.ide->read_config(0, 4) == 0x71118086);
  CHECK(rig.ide->read_config(8, 4) == 0x01018001);
  CHECK((rig.ide->read_config(0x40, 2) & 0x8000) != 0);
  CHECK((rig.ide->read_config(0x42, 2) & 0x8000) != 0);
  CHECK(rig.ide->read_config(0x20, 4) == 0xc001);
  rig.ide->write_config(0x20, 4, 0xffffffff);
  CHECK(rig.ide->read_config(0x20, 4) == 0xfff1);
  rig.ide->write_config(0x40, 4, 0xa307e377);
  CHECK(rig.ide->read_config(0x40, 4) == 0xa307e377);
  rig.ide->write_config(0x48, 4, 0xffffffff);
  CHECK(rig.ide->read_config(0x48, 4) == 0x3333000f);

  HostDriver host = rig.driver();
  CHECK(host.in(kStatus) == kReady);
  rig.ide->write_config(0x41, 1, 0);  // the channel is no longer decoded
  CHECK(host.in(kStatus) == 0xff);
  CHECK(host.alternate_status() == 0xff);
  host.out(kCommand, 0xe5);
  CHECK(rig.lines[0].edges() == 0);
  rig.ide->reset();
  CHECK(host.wait_not_busy() == kReady);

  PiixIde piix3(rig.memory, rig.reactor_thread->reactor(), {&rig.lines[0], &rig.lines[1]}, PiixModel::Piix3);
  CHECK(piix3.read_config(0, 4) == 0x70108086);
}

TEST_CASE("bus master registers take any access") {
  Rig rig;
  HostDriver host = rig.driver();
  IoHandler& ports = *host.bus_master_;
  std::vector<uint8_t> all(16);
  for (unsigned at = 0; at < 16; at += 8) ports.read(at, std::span(all).subspan(at, 8));
  CHECK(all[2] == kBmDriveCapable);
  host.bm_table(0x12345677);
  CHECK(host.bm_in(kBmTable) == 0x74);  // double words only
  CHECK(host.bm_in(kBmTable + 3) == 0x12);
  const uint8_t across[4] = {0x99, 0x88, kBmToMemory, 0};  // the last table bytes, then the other channel
  ports.write(6, across);
  CHECK(host.bm_in(kBmTable + 2) == 0x99);
  CHECK(rig.driver(1).bm_in(kBmCommand) == kBmToMemory);
  host.bm_out(kBmStatus, 0x20);
  CHECK(host.bm_in(kBmStatus) == 0x20);
}

}  // namespace
}  // namespace spindle::ide::test
