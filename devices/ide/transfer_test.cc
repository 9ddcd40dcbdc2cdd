// Every transfer command, in each of its ways, against the bytes on the medium.
#include <doctest/doctest.h>

#include "devices/ide/test_driver.h"

namespace spindle::ide::test {
namespace {

constexpr uint32_t kBuffer = 0x20000;

struct Transfer {
  const char* name;
  uint8_t opcode;
  bool ext;
  unsigned block;  // sectors a DRQ block, 0 for DMA
  bool fua = false;
};

constexpr Transfer kReads[] = {
    {"READ SECTORS", 0x20, false, 1},           {"READ SECTORS without retry", 0x21, false, 1},
    {"READ SECTORS EXT", 0x24, true, 1},        {"READ MULTIPLE", 0xc4, false, 16},
    {"READ MULTIPLE EXT", 0x29, true, 16},      {"READ DMA", 0xc8, false, 0},
    {"READ DMA without retry", 0xc9, false, 0}, {"READ DMA EXT", 0x25, true, 0},
};
constexpr Transfer kWrites[] = {
    {"WRITE SECTORS", 0x30, false, 1},      {"WRITE SECTORS without retry", 0x31, false, 1},
    {"WRITE SECTORS EXT", 0x34, true, 1},   {"WRITE MULTIPLE", 0xc5, false, 16},
    {"WRITE MULTIPLE EXT", 0x39, true, 16}, {"WRITE MULTIPLE FUA EXT", 0xce, true, 16, true},
    {"WRITE DMA", 0xca, false, 0},          {"WRITE DMA without retry", 0xcb, false, 0},
    {"WRITE DMA EXT", 0x35, true, 0},       {"WRITE DMA FUA EXT", 0x3d, true, 0, true},
};

Registers read(Rig& rig, HostDriver& host, const Transfer& t, uint64_t lba, uint32_t sectors,
               std::vector<uint8_t>& data) {
  const Registers r{.opcode = t.opcode, .count = static_cast<uint16_t>(sectors), .lba = lba, .ext = t.ext};
  data.assign(std::size_t{sectors} * kSectorBytes, 0xee);
  if (t.block != 0) return host.pio_in(r, data, t.block);
  const auto bytes = static_cast<uint32_t>(data.size());
  const Registers after = host.dma(r, true, kBuffer, bytes);
  data = rig.ram_bytes(kBuffer, bytes);
  return after;
}

Registers write(Rig& rig, HostDriver& host, const Transfer& t, uint64_t lba,
                const std::vector<uint8_t>& data) {
  const Registers r{.opcode = t.opcode,
                    .count = static_cast<uint16_t>(data.size() / kSectorBytes),
                    .lba = lba,
                    .ext = t.ext};
  if (t.block != 0) return host.pio_out(r, data, t.block);
  std::copy(data.begin(), data.end(), rig.ram.begin() + kBuffer);
  return host.dma(r, false, kBuffer, static_cast<uint32_t>(data.size()));
}

TEST_CASE("each read command delivers what is on the medium") {
  Rig rig;
  HostDriver host = rig.driver();
  const auto content = Rig::pattern_bytes(3, rig.node().size());
  rig.node().put(0, content);
  for (const Transfer& t : kReads) {
    for (uint32_t sectors : {1u, 2u, 16u, 17u, 37u, 256u}) {
      CAPTURE(t.name);
      CAPTURE(sectors);
      std::vector<uint8_t> data;
      const Registers after = read(rig, host, t, 1001, sectors, data);
      CHECK(after.opcode == kReady);
      const auto expected = rig.node().bytes(1001 * kSectorBytes, data.size());
      CHECK(data == expected);
      if (t.block == 0) CHECK((host.bm_status & (kBmActive | kBmError | kBmInterrupt)) == kBmInterrupt);
      CHECK_FALSE(rig.lines[0].level());
    }
  }
}

TEST_CASE("each write command puts data where it was aimed, and only there") {
  Rig rig;
  HostDriver host = rig.driver();
  uint8_t seed = 1;
  for (const Transfer& t : kWrites) {
    for (uint32_t sectors : {1u, 2u, 16u, 17u, 37u, 256u}) {
      CAPTURE(t.name);
      CAPTURE(sectors);
      const std::vector<uint8_t> blank(rig.node().size());
      rig.node().put(0, blank);
      const auto data = Rig::pattern_bytes(++seed, std::size_t{sectors} * kSectorBytes);
      const Registers after = write(rig, host, t, 77, data);
      CHECK(after.opcode == kReady);
      std::vector<uint8_t> expected = blank;
      std::copy(data.begin(), data.end(), expected.begin() + 77 * kSectorBytes);
      const auto found = rig.node().bytes(0, rig.node().size());
      CHECK(found == expected);
      const auto durable = rig.node().durable(77 * kSectorBytes, data.size());
      CHECK((durable == data) == t.fua);
      CHECK_FALSE(rig.lines[0].level());
    }
  }
}

TEST_CASE("count 0 means 256, or 65536 sectors") {
  Rig rig({.disk_bytes = 40u << 20});
  HostDriver host = rig.driver();
  std::vector<uint8_t> data(256 * kSectorBytes);
  CHECK(host.pio_out({.opcode = 0x30, .lba = 5}, Rig::pattern_bytes(9, data.size())).opcode == kReady);
  CHECK(rig.node().bytes(5 * kSectorBytes, data.size()) == Rig::pattern_bytes(9, data.size()));

  // 32 MiB into the same 64 KiB over and over: 512 entries of zero length.
  rig.node().clear_log();
  const std::vector<HostDriver::Region> regions(512, {.address = 0x20000, .bytes = 0x10000});
  CHECK(host.dma({.opcode = 0x25, .lba = 1, .ext = true}, true, regions).opcode == kReady);
  CHECK(rig.node().log() == std::vector<MemoryNode::Operation>{{Kind::Read, 512, 65536 * 512}});
  CHECK(host.non_data({.opcode = 0x42, .lba = 1, .ext = true}).opcode == kReady);
}

TEST_CASE("28 bits of address lie in four registers") {
  Rig rig({.disk_bytes = 64u << 20});
  HostDriver host = rig.driver();
  std::vector<uint8_t> sector(kSectorBytes);
  const auto marked = [&](uint64_t lba) {
    const auto bytes = Rig::pattern_bytes(static_cast<uint8_t>(lba), kSectorBytes);
    rig.node().put(lba * kSectorBytes, bytes);
    return bytes;
  };
  const auto expected = marked(0x012345);
  CHECK(host.pio_in({.opcode = 0x20, .count = 1, .lba = 0x012345}, sector).opcode == kReady);
  CHECK(sector == expected);
}

TEST_CASE("the data register takes words, double words and single bytes") {
  Rig rig;
  HostDriver host = rig.driver();
  const auto bytes = Rig::pattern_bytes(5, kSectorBytes);
  rig.node().put(0, bytes);
  std::vector<uint8_t> data(kSectorBytes);
  CHECK(host.pio_in({.opcode = 0x20, .count = 1}, data, 1, 4).opcode == kReady);
  CHECK(data == bytes);
  CHECK(host.pio_out({.opcode = 0x30, .count = 1, .lba = 1}, bytes, 1, 4).opcode == kReady);
  CHECK(rig.node().bytes(512, 512) == bytes);

  // A single access at a time; a byte moves a word and shows its lower half.
  host.issue({.opcode = 0x20, .count = 1});
  host.line.wait_asserted();
  CHECK(host.in(kStatus) == (kReady | kDrq));
  for (unsigned i = 0; i < kSectorBytes / 2; ++i) CHECK(host.in(kData) == bytes[2 * i]);
  CHECK(host.in(kStatus) == kReady);
  CHECK(host.in(kData) == 0);  // DRQ is clear: there is nothing to read
}

TEST_CASE("SET MULTIPLE MODE decides the block, and 0 disables the commands") {
  Rig rig;
  HostDriver host = rig.driver();
  CHECK(host.identify()[59] == 0x0110);
  CHECK(host.non_data({.opcode = 0xc6, .count = 4}).opcode == kReady);
  CHECK(host.identify()[59] == 0x0104);
  std::vector<uint8_t> data(10 * kSectorBytes);
  rig.node().clear_log();
  CHECK(host.pio_in({.opcode = 0xc4, .count = 10}, data, 4).opcode == kReady);
  CHECK(rig.node().count(Kind::Read) == 3);
  for (uint16_t count : {3, 5, 32, 255}) {
    CHECK(host.non_data({.opcode = 0xc6, .count = count}).features == kAbrt);
    CHECK(host.identify()[59] == 0x0104);
  }
  CHECK(host.non_data({.opcode = 0xc6, .count = 0}).opcode == kReady);
  CHECK(host.identify()[59] == 0);
  const Registers after = host.non_data({.opcode = 0xc4, .count = 1});
  CHECK(after.opcode == (kReady | kErr));
  CHECK(after.features == kAbrt);
}

TEST_CASE("two drives do not mix") {
  Rig rig({.places = {0, 1, 3}});
  HostDriver host = rig.driver();
  HostDriver second = rig.driver(1);
  const auto a = Rig::pattern_bytes(1, kSectorBytes);
  const auto b = Rig::pattern_bytes(2, kSectorBytes);
  const auto c = Rig::pattern_bytes(3, kSectorBytes);
  CHECK(host.pio_out({.opcode = 0x30, .count = 1, .lba = 4}, a).opcode == kReady);
  Registers to_slave{.opcode = 0x30, .count = 1, .lba = 4};
  to_slave.device |= kDeviceDev;
  CHECK(host.pio_out(to_slave, b).opcode == kReady);
  CHECK(second.pio_out(to_slave, c).opcode == kReady);
  CHECK(rig.node(0).bytes(4 * 512, 512) == a);
  CHECK(rig.node(1).bytes(4 * 512, 512) == b);
  CHECK(rig.node(2).bytes(4 * 512, 512) == c);
}

}  // namespace
}  // namespace spindle::ide::test
