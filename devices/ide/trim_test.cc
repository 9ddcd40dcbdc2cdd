// DATA SET MANAGEMENT (TRIM): what is offered, what the payload means, and that a bad one does nothing.
#include "devices/ide/trim.h"

#include <doctest/doctest.h>

#include "devices/ide/test_driver.h"

namespace spindle::ide::test {
namespace {

constexpr uint32_t kBuffer = 0x20000;
constexpr uint64_t kSectors = (4u << 20) / kSectorBytes;

struct Entry {
  uint64_t lba;
  uint16_t count;
};

std::vector<uint8_t> payload_of(std::initializer_list<Entry> entries, unsigned blocks = 1) {
  std::vector<uint8_t> payload(std::size_t{blocks} * kSectorBytes);
  std::size_t at = 0;
  for (const Entry& entry : entries) {
    for (unsigned i = 0; i < 6; ++i) payload[at + i] = static_cast<uint8_t>(entry.lba >> (8 * i));
    payload[at + 6] = static_cast<uint8_t>(entry.count);
    payload[at + 7] = static_cast<uint8_t>(entry.count >> 8);
    at += 8;
  }
  return payload;
}

constexpr Registers kTrim{.opcode = 0x06, .features = 1, .count = 1, .ext = true};

struct TrimRig : Rig {
  explicit TrimRig(RigOptions options = {.discard = true})
      : Rig(std::move(options)), host(driver()), content(Rig::pattern_bytes(3, node().size())) {
    node().put(0, content);
  }
  Registers trim(const std::vector<uint8_t>& payload) {
    Registers r = kTrim;
    r.count = static_cast<uint16_t>(payload.size() / kSectorBytes);
    std::copy(payload.begin(), payload.end(), ram.begin() + kBuffer);
    return host.dma(r, false, kBuffer, static_cast<uint32_t>(payload.size()));
  }
  std::vector<MemoryNode::Operation> discards() const {
    std::vector<MemoryNode::Operation> result;
    for (const auto& operation : nodes[0]->log()) {
      if (operation.kind == Kind::Discard) result.push_back(operation);
    }
    return result;
  }
  HostDriver host;
  std::vector<uint8_t> content;
};

MemoryNode::Operation discarded(uint64_t lba, uint64_t sectors) {
  return {Kind::Discard, lba * kSectorBytes, sectors * kSectorBytes};
}

TEST_CASE("TRIM discards what its entries name, and only that") {
  TrimRig rig;
  const Registers after = rig.trim(payload_of({{10, 5}, {0, 0}, {100, 1}, {kSectors - 2, 2}, {99, 0}}));
  CHECK(after.opcode == kReady);
  CHECK((rig.host.bm_status & (kBmActive | kBmError | kBmInterrupt)) == kBmInterrupt);
  CHECK(rig.discards() == std::vector{discarded(10, 5), discarded(100, 1), discarded(kSectors - 2, 2)});
  std::vector<uint8_t> expected = rig.content;
  for (auto [lba, count] : {std::pair{10u, 5u}, {100u, 1u}, {8190u, 2u}})
    std::fill_n(expected.begin() + lba * 512, count * 512, uint8_t{0});
  CHECK(rig.node().bytes(0, rig.node().size()) == expected);
  CHECK(rig.disk().counters().discard_ops.value() == 3);
}

TEST_CASE("entries that go on where the last one ended are one range") {
  TrimRig rig;
  CHECK(rig.trim(payload_of({{1, 7}, {8, 8}, {0, 0}, {16, 1}, {15, 1}, {20, 1}})).opcode == kReady);
  CHECK(rig.discards() == std::vector{discarded(1, 16), discarded(15, 1), discarded(20, 1)});
  // 65,535 at a time, as Linux does.
  const auto ranges =
      trim_ranges(payload_of({{0, 0xffff}, {0xffff, 0xffff}, {0x1fffe, 0x2}}), uint64_t{1} << 32);
  CHECK(ranges == std::vector<ByteRange>{{0, 0x20000ull * kSectorBytes}});
}

TEST_CASE("several blocks, full ones, and none that says anything") {
  TrimRig rig;
  std::vector<uint8_t> payload;
  for (uint64_t i = 0; i < 64 * kMaxTrimBlocks; ++i) {
    const auto entry = payload_of({{2 * i, 1}});
    payload.insert(payload.end(), entry.begin(), entry.begin() + 8);
  }
  CHECK(payload.size() == kMaxTrimBlocks * kSectorBytes);
  CHECK(rig.trim(payload).opcode == kReady);
  CHECK(rig.discards().size() == 64 * kMaxTrimBlocks);
  CHECK(rig.discards().back() == discarded(2 * (64 * kMaxTrimBlocks - 1), 1));
  rig.node().clear_log();
  CHECK(rig.trim(std::vector<uint8_t>(2 * kSectorBytes)).opcode == kReady);
  CHECK(rig.node().log().empty());
}

TEST_CASE("one entry beyond the end, wherever it stands: ABRT, and nothing is done") {
  TrimRig rig;
  constexpr uint64_t kLast48 = 0xffffffffffff;
  for (const Entry& bad : {Entry{kSectors, 1}, Entry{kSectors - 1, 2}, Entry{kSectors - 1, 0xffff},
                           Entry{kLast48, 1}, Entry{kLast48, 0xffff}, Entry{uint64_t{1} << 47, 1}}) {
    for (const auto& payload :
         {payload_of({bad}), payload_of({{0, 8}, {16, 8}, bad}), payload_of({bad, {0, 8}}, 3)}) {
      const Registers after = rig.trim(payload);
      CHECK(after.opcode == (kReady | kErr));
      CHECK(after.features == kAbrt);
    }
  }
  CHECK(rig.node().log().empty());
  CHECK(rig.node().bytes(0, rig.node().size()) == rig.content);
}

TEST_CASE("registers that mean nothing abort before any data is asked for") {
  TrimRig rig;
  const auto aborts = [&](uint16_t features, uint16_t count) {
    Registers r = kTrim;
    r.features = features;
    r.count = count;
    const Registers after = rig.host.non_data(r);
    return after.opcode == (kReady | kErr) && after.features == kAbrt;
  };
  for (uint16_t features : {0x0000, 0x0002, 0x0003, 0x0100, 0x0101, 0xffff}) CHECK(aborts(features, 1));
  for (uint16_t count : {0x0000, 0x0009, 0x0100, 0x0101, 0xffff}) CHECK(aborts(1, count));
  CHECK(rig.node().log().empty());
}

TEST_CASE("the payload comes from RAM or not at all") {
  TrimRig rig;
  const HostDriver::Region outside[] = {{0x0fffff00, 512}};
  rig.host.put_table(HostDriver::kTableAddress, outside);
  rig.host.start_dma(kTrim, false);
  CHECK((rig.host.bm_in(kBmStatus) & (kBmActive | kBmError)) == kBmError);
  CHECK((rig.host.alternate_status() & kBsy) != 0);
  rig.host.soft_reset();
  CHECK(rig.host.wait_not_busy() == kReady);
  CHECK(rig.node().log().empty());
}

TEST_CASE("the payload is the one that was there, whatever the host writes meanwhile") {
  TrimRig rig;
  rig.node().hold(Kind::Discard);
  const auto payload = payload_of({{10, 1}, {20, 1}});
  std::copy(payload.begin(), payload.end(), rig.ram.begin() + kBuffer);
  const HostDriver::Region region[] = {{kBuffer, 512}};
  rig.host.put_table(HostDriver::kTableAddress, region);
  rig.host.start_dma(kTrim, false);
  rig.node().wait_held(Kind::Discard);
  rig.fill(kBuffer, 512, 0xff);
  rig.node().release(Kind::Discard);
  CHECK(rig.host.finish_dma(true).opcode == kReady);
  CHECK(rig.discards() == std::vector{discarded(10, 1), discarded(20, 1)});
}

TEST_CASE("D7: with the cache off a completed TRIM is durable, with it on after a flush") {
  for (CacheMode mode : {CacheMode::Writeback, CacheMode::Writethrough}) {
    TrimRig rig({.cache = mode, .discard = true});
    CHECK(rig.trim(payload_of({{10, 5}, {20, 5}})).opcode == kReady);
    const std::vector<uint8_t> zeroes(5 * kSectorBytes);
    const auto durable = [&] {
      return rig.node().durable(10 * kSectorBytes, zeroes.size()) == zeroes &&
             rig.node().durable(20 * kSectorBytes, zeroes.size()) == zeroes;
    };
    CHECK(durable() == (mode == CacheMode::Writethrough));
    CHECK(rig.disk().counters().flushes_writethrough.value() == (mode == CacheMode::Writethrough ? 1 : 0));
    CHECK(rig.host.non_data({.opcode = 0xe7}).opcode == kReady);
    CHECK(durable());
  }
}

TEST_CASE("a discard that fails is ABRT") {
  TrimRig rig;
  rig.node().fail(Kind::Discard, 20 * kSectorBytes, kSectorBytes);
  const Registers after = rig.trim(payload_of({{10, 1}, {20, 1}, {30, 1}}));
  CHECK(after.opcode == (kReady | kErr));
  CHECK(after.features == kAbrt);
  CHECK(rig.discards().size() == 2);
  rig.node().heal();
  CHECK(rig.trim(payload_of({{20, 1}})).opcode == kReady);
}

TEST_CASE("TRIM is there, and claimed, only where discards reach the host") {
  struct Case {
    const char* name;
    RigOptions options;
    bool trim;
    uint16_t word69;
  };
  const Case cases[] = {
      {"discard=ignore", {}, false, 0},
      {"read-only", {.read_only = true, .discard = true}, false, 0},
      {"a node that cannot", {.discard = true, .discard_granularity = 0}, false, 0},
      {"zeroes, by the sector", {.discard = true}, true, 0x4020},
      {"zeroes, by 4 KiB", {.discard = true, .discard_granularity = 4096}, true, 0x4000},
      {"no promise", {.discard = true, .discard_zeroes = false}, true, 0},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    TrimRig rig(c.options);
    const auto words = rig.host.identify();
    CHECK(words[169] == (c.trim ? 1 : 0));
    CHECK(words[105] == (c.trim ? kMaxTrimBlocks : 0));
    CHECK(words[69] == c.word69);
    if (c.trim) {
      CHECK(rig.trim(payload_of({{0, 1}})).opcode == kReady);
    } else {
      CHECK(rig.host.non_data(kTrim).features == kAbrt);
      CHECK(rig.node().log().empty());
    }
  }
}

}  // namespace
}  // namespace spindle::ide::test
