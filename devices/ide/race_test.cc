// Several threads at the registers, and hosts that write anything: nothing is lost, nothing breaks. The TSan
// build of this test is what shows that the channel has one owner.
#include <doctest/doctest.h>

#include <atomic>
#include <random>

#include "devices/ide/packet_driver.h"

namespace spindle::ide::test {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr unsigned kRounds = 300;
#else
constexpr unsigned kRounds = 2000;
#endif

// Writes and reads back through every kind of transfer, toggling the cache now and then.
void busy_host(Rig& rig, HostDriver& host, uint32_t buffer, uint32_t table, uint8_t seed,
               std::atomic<unsigned>& failures) {
  std::mt19937 random(seed);
  for (unsigned round = 0; round < kRounds; ++round) {
    const uint64_t lba = random() % 4000;
    const auto fill = static_cast<uint8_t>(random());
    const auto data = Rig::pattern_bytes(fill, 4096);
    std::copy(data.begin(), data.end(), rig.ram.begin() + buffer);
    const HostDriver::Region region{buffer, 4096};
    host.put_table(table, std::span(&region, 1));
    const uint8_t write = round % 3 == 0 ? 0x3d : 0x35;
    host.start_dma({.opcode = write, .count = 8, .lba = lba, .ext = true}, false, table);
    if (host.finish_dma(true).opcode != kReady) ++failures;
    if (round % 16 == 5) {
      const uint16_t feature = round & 32 ? kFeatureDisableWriteCache : kFeatureEnableWriteCache;
      if (host.non_data({.opcode = 0xef, .features = feature}).opcode != kReady) ++failures;
    }
    if (round % 8 == 1 && host.non_data({.opcode = 0xe7}).opcode != kReady) ++failures;
    std::fill_n(rig.ram.begin() + buffer, 4096, uint8_t{0});
    if (round & 1) {
      host.start_dma({.opcode = 0x25, .count = 8, .lba = lba, .ext = true}, true, table);
      if (host.finish_dma(true).opcode != kReady) ++failures;
      if (!std::equal(data.begin(), data.end(), rig.ram.begin() + buffer)) ++failures;
    } else {
      std::vector<uint8_t> back(4096);
      if (host.pio_in({.opcode = 0x29, .count = 8, .lba = lba, .ext = true}, back, 16).opcode != kReady)
        ++failures;
      if (back != data) ++failures;
    }
  }
}

TEST_CASE("two vCPUs keep a channel each busy while others look on") {
  Rig rig({.places = {0, 2}});
  HostDriver first = rig.driver(0);
  HostDriver second = rig.driver(1);
  std::atomic<unsigned> failures{0};
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    HostDriver look = rig.driver(0);
    unsigned turn = 0;
    while (!done) {
      look.alternate_status();
      look.in(kError);
      look.bm_in(kBmStatus);
      rig.driver(1).alternate_status();
      rig.ide->write_config(0x44, 1, ++turn & 0xff);
      rig.ide->read_config(0x40, 4);
      std::this_thread::yield();
    }
  });
  std::thread one([&] { busy_host(rig, first, 0x20000, 0x1000, 1, failures); });
  std::thread two([&] { busy_host(rig, second, 0x40000, 0x2000, 2, failures); });
  one.join();
  two.join();
  done = true;
  watcher.join();
  CHECK(failures == 0);
  for (std::size_t i = 0; i < 2; ++i) {
    const DiskCounters& counters = rig.disk(i).counters();
    CHECK(counters.errors.value() == 0);
    CHECK(counters.write_ops.value() == kRounds);
    CHECK(counters.flush_requests.value() + counters.flushes_writethrough.value() +
              counters.flushes_toggle.value() + counters.flushes_background.value() ==
          counters.flushes_issued.value() + counters.flushes_elided.value() +
              counters.flushes_coalesced.value() + counters.flushes_failed.value());
  }
}

// One step of a host that has lost its mind: any register, any value, resets, starts and stops.
void mad_step(Rig& rig, HostDriver& host, std::mt19937& random) {
  static constexpr uint8_t kOpcodes[] = {0x20, 0x24, 0xc4, 0x29, 0xc8, 0x25, 0x30, 0x34, 0xc5, 0x39,
                                         0xce, 0xca, 0x35, 0x3d, 0x40, 0xe7, 0xea, 0xef, 0xc6, 0x91,
                                         0x90, 0xec, 0xe0, 0xe5, 0xe6, 0x00, 0xa1, 0x08, 0x06, 0x27,
                                         0xf8, 0xb0, 0xb0, 0xa0, 0xa0, 0xa0, 0xa1, 0x08};
  // Cache on and off, TRIM, and SMART's.
  static constexpr uint8_t kFeatureValues[] = {0x02, 0x82, 0x02, 0x82, 0x01, 0xd0,
                                               0xd1, 0xd5, 0xd8, 0xd9, 0xda};
  static constexpr uint8_t kPacketOpcodes[] = {0x00, 0x03, 0x12, 0x1b, 0x1e, 0x25, 0x28,
                                               0x28, 0x43, 0x46, 0x4a, 0x5a, 0xa8, 0xbe};
  uint8_t bytes[64];
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  const unsigned size = 1u << (random() % 3);
  switch (random() % 16) {
    case 0:
    case 1:
    case 2:
      host.out(kCommand, kOpcodes[random() % std::size(kOpcodes)]);
      break;
    case 3:
    case 4: {
      const unsigned offset = random() % (8 - size + 1);
      rig.ide->command_block(0).write(offset, std::span<const uint8_t>(bytes, size));
      break;
    }
    case 5: {
      const unsigned offset = random() % (8 - size + 1);
      rig.ide->command_block(0).read(offset, std::span(bytes, size));
      break;
    }
    case 6:
      rig.ide->command_block(0).read_repeated(kData, bytes, size);
      break;
    case 7:
      if (random() % 2) {  // something that a packet device understands, of blocks that are there
        std::fill_n(bytes, 6, uint8_t{0});
        bytes[0] = kPacketOpcodes[random() % std::size(kPacketOpcodes)];
        bytes[4] = static_cast<uint8_t>(random() % 8);
      }
      rig.ide->command_block(0).write_repeated(kData, bytes, size);
      break;
    case 8:
      host.out(random() % 2 ? kFeatures : kSectorCount, kFeatureValues[random() % std::size(kFeatureValues)]);
      break;
    case 9:
      host.control(random() % 8 == 0 ? bytes[0] : 0);
      break;
    case 10:
      host.bm_table(0x1000 + 8 * (random() % 8));
      break;
    case 11:
    case 12:
      host.bm_out(kBmCommand, bytes[0]);
      break;
    case 13:
      host.bm_out(kBmStatus, bytes[0]);
      break;
    case 14:
      host.alternate_status();
      host.bm_in(random() % 8);
      break;
    case 15:
      if (random() % 64 == 0) {
        rig.ide->reset();
        rig.power_up();
      } else {
        host.select(random() % 2);
        const bool key = random() % 4 == 0;
        host.out(kLbaMid, key ? kSmartKeyMid : 0);
        host.out(kLbaHigh, key ? kSmartKeyHigh : 0);
      }
      break;
  }
}

// Two hosts on one channel, and then a machine reset.
void go_mad(Rig& rig) {
  // Eight tables, good and bad ones among them, that DMA never writes to.
  const HostDriver::Region regions[] = {{0x20000, 0x10000}, {0x30000, 512},    {0x40001, 3},
                                        {0x50000, 0x8000},  {0xfff00000, 512}, {0x60000, 0x10000},
                                        {0x70000, 4096},    {0x80000, 0x10000}};
  HostDriver host = rig.driver();
  host.put_table(0x1000, regions);
  std::vector<std::thread> threads;
  for (unsigned seed : {11u, 12u}) {
    // A driver made later might find no BAR: the other thread may just be resetting the machine.
    threads.emplace_back([&rig, mad = host, seed]() mutable {
      std::mt19937 random(seed);
      for (unsigned step = 0; step < 20 * kRounds; ++step) mad_step(rig, mad, random);
    });
  }
  for (std::thread& thread : threads) thread.join();
  host.bm_out(kBmCommand, 0);
  rig.ide->reset();
  rig.power_up();
  host.wait_not_busy();
}

TEST_CASE("whatever hosts write, from two threads at once, the channel comes back after a reset") {
  Rig rig({.discard = true, .places = {0, 1}});
  go_mad(rig);
  HostDriver host = rig.driver();
  for (unsigned unit : {0u, 1u}) {
    CHECK(host.identify(unit)[0] == 0x0040);
    const auto data = Rig::pattern_bytes(static_cast<uint8_t>(unit), kSectorBytes);
    Registers write{.opcode = 0x30, .count = 1, .lba = 17};
    if (unit) write.device |= kDeviceDev;
    CHECK(host.pio_out(write, data).opcode == kReady);
    CHECK(rig.node(unit).bytes(17 * kSectorBytes, kSectorBytes) == data);
  }
}

TEST_CASE("the same with a CD-ROM drive: it reads what is on its medium afterwards") {
  Rig rig({.places = {0}, .discs = {1}});
  const auto content = Rig::pattern_bytes(3, 16 * kDiscBlockBytes);
  rig.node(1).put(0, content);
  go_mad(rig);
  PacketHost cd(rig, 1);
  cd.pio({kStartStopUnit, 0, 0, 0, 3});  // whatever became of the tray
  cd.sense();
  CHECK(cd.pio(PacketHost::read10(0, 16)).data == content);
  CHECK(cd.host.identify(0)[0] == 0x0040);
}

TEST_CASE("soft resets at random moments of DMA writes: each write is whole and in its place, or absent") {
  Rig rig;
  HostDriver host = rig.driver();
  std::mt19937 random(7);
  for (unsigned round = 0; round < kRounds; ++round) {
    const uint64_t lba = 8 * (1 + random() % 500);
    const auto fill = static_cast<uint8_t>(1 + random() % 255);
    const auto data = Rig::pattern_bytes(fill, 4096);
    const auto before = rig.node().bytes(lba * kSectorBytes, 4096);
    std::copy(data.begin(), data.end(), rig.ram.begin() + 0x20000);
    const HostDriver::Region region{0x20000, 4096};
    host.put_table(0x1000, std::span(&region, 1));
    host.start_dma({.opcode = 0x35, .count = 8, .lba = lba, .ext = true}, false);
    for (unsigned spin = random() % 2000; spin > 0; --spin) host.alternate_status();
    if (random() & 1) host.bm_out(kBmCommand, 0);
    host.soft_reset();
    CHECK(host.wait_not_busy() == kReady);
    host.bm_out(kBmCommand, 0);
    const auto after = rig.node().bytes(lba * kSectorBytes, 4096);
    CHECK((after == data || after == before));
    CHECK(rig.node().bytes(0, 4096) == std::vector<uint8_t>(4096));
  }
}

}  // namespace
}  // namespace spindle::ide::test
