// The write cache from the guest's side: toggles, FUA, flushes, and what a power cut would have left.
// Each test names the line of the durability contract it checks.
#include <doctest/doctest.h>

#include "devices/ide/test_driver.h"

namespace spindle::ide::test {
namespace {

constexpr uint32_t kBuffer = 0x20000;
constexpr uint16_t kWord85WriteCache = 1u << 5;

Registers set_feature(HostDriver& host, uint16_t feature) {
  return host.non_data({.opcode = 0xef, .features = feature});
}
bool shown(HostDriver& host) {
  return host.identify()[85] & kWord85WriteCache;
}
Registers write_dma(Rig& rig, HostDriver& host, uint64_t lba, uint8_t seed, uint8_t opcode = 0x35) {
  rig.fill(kBuffer, 4096, seed);
  return host.dma({.opcode = opcode, .count = 8, .lba = lba, .ext = true}, false, kBuffer, 4096);
}
bool durable(Rig& rig, uint64_t lba, uint8_t seed) {
  return rig.node().durable(lba * kSectorBytes, 4096) == Rig::pattern_bytes(seed, 4096);
}

TEST_CASE("D1, D2: a completed write is durable at once with the cache off, after a flush with it on") {
  Rig rig;
  HostDriver host = rig.driver();
  CHECK(write_dma(rig, host, 0, 1).opcode == kReady);
  CHECK_FALSE(durable(rig, 0, 1));
  for (uint8_t flush : {0xe7, 0xea}) {
    CHECK(write_dma(rig, host, 8, flush).opcode == kReady);
    CHECK_FALSE(durable(rig, 8, flush));
    CHECK(host.non_data({.opcode = flush}).opcode == kReady);
    CHECK(durable(rig, 8, flush));
  }
  CHECK(set_feature(host, kFeatureDisableWriteCache).opcode == kReady);
  CHECK(write_dma(rig, host, 16, 2).opcode == kReady);
  CHECK(durable(rig, 16, 2));
  const auto sectors = Rig::pattern_bytes(7, 2 * kSectorBytes);
  CHECK(host.pio_out({.opcode = 0x30, .count = 2, .lba = 100}, sectors).opcode == kReady);
  CHECK(rig.node().durable(100 * kSectorBytes, sectors.size()) == sectors);
  CHECK(rig.disk().counters().flush_requests.value() == 2);
  CHECK(rig.disk().counters().flushes_writethrough.value() == 3);  // one a DRQ block for PIO
  CHECK(rig.disk().counters().flushes_toggle.value() == 1);
  CHECK(rig.disk().counters().cache_toggles.value() == 1);
}

TEST_CASE("FUA writes are durable and counted, and cost the cache nothing") {
  Rig rig;
  HostDriver host = rig.driver();
  CHECK(write_dma(rig, host, 0, 1).opcode == kReady);
  CHECK(write_dma(rig, host, 8, 2, 0x3d).opcode == kReady);
  CHECK(durable(rig, 8, 2));
  CHECK_FALSE(durable(rig, 0, 1));
  CHECK(rig.disk().counters().fua_writes.value() == 1);
  CHECK(rig.node().count(Kind::Flush) == 0);
}

TEST_CASE("D3: 82h keeps BSY until everything completed earlier is durable") {
  Rig rig;
  HostDriver host = rig.driver();
  CHECK(write_dma(rig, host, 0, 1).opcode == kReady);
  rig.node().hold(Kind::Flush);
  host.issue({.opcode = 0xef, .features = kFeatureDisableWriteCache});
  rig.node().wait_held(Kind::Flush);
  CHECK((host.alternate_status() & kBsy) != 0);
  CHECK_FALSE(rig.lines[0].level());
  CHECK_FALSE(durable(rig, 0, 1));
  rig.node().release(Kind::Flush);
  host.line.wait_asserted();
  CHECK(host.result().opcode == kReady);
  CHECK(durable(rig, 0, 1));
  CHECK_FALSE(shown(host));
  CHECK(set_feature(host, kFeatureEnableWriteCache).opcode == kReady);
  CHECK(shown(host));
}

TEST_CASE("D3, D6: 82h whose flush fails ends in ERR|ABRT, and no write succeeds any more") {
  Rig rig;
  HostDriver host = rig.driver();
  CHECK(write_dma(rig, host, 0, 1).opcode == kReady);
  rig.node().fail(Kind::Flush);
  const Registers after = set_feature(host, kFeatureDisableWriteCache);
  CHECK(after.opcode == (kReady | kErr));
  CHECK(after.features == kAbrt);
  rig.node().heal();
  for (uint8_t opcode : {0x35, 0x3d}) {
    const Registers refused = write_dma(rig, host, 8, 2, opcode);
    CHECK(refused.opcode == (kReady | kErr));
    CHECK(refused.features == kAbrt);
  }
  for (uint8_t flush : {0xe7, 0xea, 0xe0}) CHECK(host.non_data({.opcode = flush}).features == kAbrt);
  std::vector<uint8_t> data(kSectorBytes);
  CHECK(host.pio_in({.opcode = 0x20, .count = 1}, data).opcode == kReady);  // reads go on
  CHECK(data == Rig::pattern_bytes(1, kSectorBytes));
}

TEST_CASE("D4: a soft reset keeps the guest's choice, unless it asked otherwise") {
  for (const CacheMode cache : {CacheMode::Writeback, CacheMode::Writethrough}) {
    const bool configured = cache == CacheMode::Writeback;
    Rig rig({.cache = cache});
    HostDriver host = rig.driver();
    CHECK(shown(host) == configured);
    const uint16_t other = configured ? kFeatureDisableWriteCache : kFeatureEnableWriteCache;
    CHECK(set_feature(host, other).opcode == kReady);
    host.soft_reset();
    host.wait_not_busy();
    CHECK(shown(host) == !configured);
    CHECK(set_feature(host, kFeatureEnableRevert).opcode == kReady);
    CHECK(set_feature(host, kFeatureDisableRevert).opcode == kReady);
    host.soft_reset();
    host.wait_not_busy();
    CHECK(shown(host) == !configured);
    CHECK(set_feature(host, kFeatureEnableRevert).opcode == kReady);
    host.soft_reset();
    host.wait_not_busy();
    CHECK(shown(host) == configured);
    // Machine reset: the configured mode, and 66h again.
    CHECK(set_feature(host, other).opcode == kReady);
    rig.ide->reset();
    host.wait_not_busy();
    CHECK(shown(host) == configured);
    CHECK(set_feature(host, other).opcode == kReady);
    host.soft_reset();
    host.wait_not_busy();
    CHECK(shown(host) == !configured);
  }
}

TEST_CASE("D4: a revert from on to off flushes before the reset completes") {
  Rig rig({.cache = CacheMode::Writethrough});
  HostDriver host = rig.driver();
  CHECK(set_feature(host, kFeatureEnableWriteCache).opcode == kReady);
  CHECK(set_feature(host, kFeatureEnableRevert).opcode == kReady);
  CHECK(write_dma(rig, host, 0, 1).opcode == kReady);
  CHECK_FALSE(durable(rig, 0, 1));
  rig.node().hold(Kind::Flush);
  host.soft_reset();
  rig.node().wait_held(Kind::Flush);
  CHECK((host.alternate_status() & kBsy) != 0);
  host.soft_reset();  // again, while the first one is not done
  CHECK((host.alternate_status() & kBsy) != 0);
  rig.node().release(Kind::Flush);
  CHECK(host.wait_not_busy() == kReady);
  CHECK(durable(rig, 0, 1));
  CHECK_FALSE(shown(host));
}

TEST_CASE("D9: cache=unsafe toggles what the guest sees, and no flush reaches the node's durability count") {
  Rig rig({.cache = CacheMode::Unsafe});
  HostDriver host = rig.driver();
  CHECK(shown(host));
  CHECK(set_feature(host, kFeatureDisableWriteCache).opcode == kReady);
  CHECK_FALSE(shown(host));
  CHECK(write_dma(rig, host, 0, 1).opcode == kReady);
  CHECK(rig.disk().counters().flushes_issued.value() == 0);
}

}  // namespace
}  // namespace spindle::ide::test
