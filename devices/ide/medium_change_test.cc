// Media that come and go while the guest runs: what it is told, and what becomes of the reads under way.
#include <doctest/doctest.h>

#include <atomic>
#include <random>

#include "devices/ide/packet_driver.h"

namespace spindle::ide::test {
namespace {

constexpr uint32_t kBuffer = 0x20000;
constexpr unsigned kPlace = 2;  // device 0 of channel 1
constexpr uint64_t kBlocks = 64;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr unsigned kRounds = 300;
#else
constexpr unsigned kRounds = 2000;
#endif

CdbBytes media_event() {
  return {kGetEventStatus, 1, 0, 0, 1u << 4, 0, 0, 0, 8};
}
CdbBytes lock(bool on) {
  return {kPreventAllow, 0, 0, 0, on ? uint8_t{1} : uint8_t{0}};
}
CdbBytes move_tray(bool closed) {
  return {kStartStopUnit, 0, 0, 0, closed ? uint8_t{3} : uint8_t{2}};
}

struct Medium {
  std::shared_ptr<MemoryNode> node;
  std::shared_ptr<Disk> disk;
  std::vector<uint8_t> content;

  std::vector<uint8_t> part(uint64_t block, uint64_t count) const {
    const auto begin = content.begin() + static_cast<std::ptrdiff_t>(block * kDiscBlockBytes);
    return {begin, begin + static_cast<std::ptrdiff_t>(count * kDiscBlockBytes)};
  }
};

Medium make_medium(Rig& rig, uint8_t seed, uint64_t blocks = kBlocks) {
  Medium made;
  made.content = Rig::pattern_bytes(seed, blocks * kDiscBlockBytes);
  made.node = std::make_shared<MemoryNode>(rig.reactor_thread->reactor(), made.content.size());
  made.node->put(0, made.content);
  made.disk = std::make_shared<Disk>(made.node, DiskOptions{.id = "cd", .read_only = true});
  return made;
}

/// A drive with a first medium, unless it is to be empty, and the host's user beside it.
struct ChangerRig : Rig {
  explicit ChangerRig(bool empty = false) : Rig({.places = {}, .empty_drives = {kPlace}}) {
    if (empty) return;
    first = make_medium(*this, 1);
    insert(first);
    PacketHost cd(*this, kPlace);
    cd.pio(media_event());
    cd.sense();
  }
  Channel& drive() { return ide->channel(kPlace / 2); }
  /// What lay in the drive before.
  std::shared_ptr<Disk> insert(const Medium& medium, bool force = false) {
    std::shared_ptr<Disk> disk = medium.disk;
    CHECK(drive().change_medium(kPlace % 2, disk, force));
    return disk;
  }
  std::shared_ptr<Disk> eject(bool force = false) {
    std::shared_ptr<Disk> disk;
    CHECK(drive().change_medium(kPlace % 2, disk, force));
    return disk;
  }
  void let_go(const Disk& disk) {
    reactor_thread->call([&] { return drive().let_go(disk); });
  }
  Medium first;
};

TEST_CASE(
    "medium: one comes into an empty drive, and the guest is told once by attention and once by event") {
  ChangerRig rig(true);
  PacketHost cd(rig, kPlace);
  CHECK(cd.refusal({kTestUnitReady}) == kMediumNotPresentTrayClosed);
  const Medium medium = make_medium(rig, 7);
  CHECK(rig.insert(medium) == nullptr);
  CHECK(cd.pio(media_event()).data == std::vector<uint8_t>{0, 6, 4, 0x10, 2, 2, 0, 0});
  CHECK(cd.pio(media_event()).data == std::vector<uint8_t>{0, 6, 4, 0x10, 0, 2, 0, 0});
  CHECK(cd.refusal(PacketHost::read10(0, 1)) == kMediumMayHaveChanged);
  CHECK(cd.pio(PacketHost::read10(3, 2)).data == medium.part(3, 2));
  CHECK(cd.sense() == Sense{});
}

TEST_CASE("medium: changed twice while the guest does not look, it is told of the last one") {
  ChangerRig rig;
  PacketHost cd(rig, kPlace);
  const Medium second = make_medium(rig, 2), third = make_medium(rig, 3, kBlocks / 2);
  CHECK(rig.insert(second) == rig.first.disk);
  CHECK(rig.insert(third) == second.disk);
  CHECK(cd.refusal({kReadCapacity}) == kMediumMayHaveChanged);
  CHECK(cd.pio({kReadCapacity}).be32(0) == kBlocks / 2 - 1);
  CHECK(cd.pio(media_event()).data[4] == 2);
  CHECK(cd.pio(media_event()).data[4] == 0);
  CHECK(cd.pio(PacketHost::read10(0, 4)).data == third.part(0, 4));
}

TEST_CASE("medium: ejected, the tray is open and empty, until somebody closes it or puts one in") {
  ChangerRig rig;
  PacketHost cd(rig, kPlace);
  CHECK(rig.eject() == rig.first.disk);
  CHECK(rig.drive().tray(0).open);
  CHECK(cd.refusal({kTestUnitReady}) == kMediumNotPresentTrayOpen);
  CHECK(cd.pio(media_event()).data == std::vector<uint8_t>{0, 6, 4, 0x10, 3, 1, 0, 0});
  CHECK(rig.eject() == nullptr);  // nothing more to take out
  CHECK(cd.pio(media_event()).data[4] == 0);
  CHECK(cd.pio(move_tray(true)).good());
  CHECK(!rig.drive().tray(0).open);
  CHECK(cd.refusal({kTestUnitReady}) == kMediumNotPresentTrayClosed);
  CHECK(rig.insert(rig.first) == nullptr);
  CHECK(!rig.drive().tray(0).open);
  CHECK(cd.refusal({kTestUnitReady}) == kMediumMayHaveChanged);
  CHECK(cd.pio({kTestUnitReady}).good());
}

TEST_CASE("medium: a locked tray stays closed, the guest hears of the wish, and force opens it") {
  ChangerRig rig;
  PacketHost cd(rig, kPlace);
  CHECK(cd.pio(lock(true)).good());
  CHECK(rig.drive().tray(0).locked);
  const Medium second = make_medium(rig, 2);
  for (unsigned how = 0; how < 2; ++how) {
    CAPTURE(how);
    std::shared_ptr<Disk> disk = second.disk;
    CHECK_FALSE((how == 0 ? rig.drive().open_tray(0, false) : rig.drive().change_medium(0, disk, false)));
    CHECK(disk == second.disk);
    CHECK(!rig.drive().tray(0).open);
    CHECK(cd.pio(media_event()).data == std::vector<uint8_t>{0, 6, 4, 0x10, 1, 2, 0, 0});
    CHECK(cd.pio(media_event()).data[4] == 0);
  }
  CHECK(cd.pio(PacketHost::read10(5, 1)).data == rig.first.part(5, 1));

  CHECK(rig.drive().open_tray(0, true));
  CHECK(!rig.drive().tray(0).locked);
  CHECK(cd.refusal({kTestUnitReady}) == kMediumNotPresentTrayOpen);
  CHECK(cd.pio(media_event()).data[4] == 3);
  // The medium stayed in it, as after the guest's own opening.
  rig.drive().close_tray(0);
  CHECK(cd.refusal({kTestUnitReady}) == kMediumMayHaveChanged);
  CHECK(cd.pio(PacketHost::read10(5, 1)).data == rig.first.part(5, 1));
}

TEST_CASE("medium: the event of a change comes before the wish to eject, and a change makes it void") {
  ChangerRig rig;
  PacketHost cd(rig, kPlace);
  rig.insert(make_medium(rig, 2));
  cd.sense();
  cd.pio(lock(true));
  CHECK_FALSE(rig.drive().open_tray(0, false));
  CHECK(cd.pio(media_event()).data[4] == 2);
  CHECK(cd.pio(media_event()).data[4] == 1);
  CHECK(cd.pio(media_event()).data[4] == 0);
  CHECK_FALSE(rig.drive().open_tray(0, false));
  rig.eject(true);
  CHECK(cd.pio(media_event()).data[4] == 3);
  CHECK(cd.pio(media_event()).data[4] == 0);
}

TEST_CASE("medium: what the guest ejected stays in the tray, and can be taken out of it") {
  ChangerRig rig;
  PacketHost cd(rig, kPlace);
  CHECK(cd.pio(move_tray(false)).good());
  CHECK(rig.drive().tray(0).open);
  CHECK(cd.pio(move_tray(true)).good());
  cd.sense();
  CHECK(cd.pio(PacketHost::read10(1, 1)).data == rig.first.part(1, 1));
  cd.pio(move_tray(false));
  const Medium second = make_medium(rig, 2);
  CHECK(rig.insert(second) == rig.first.disk);
  CHECK(cd.refusal({kTestUnitReady}) == kMediumMayHaveChanged);
  CHECK(cd.pio(PacketHost::read10(1, 1)).data == second.part(1, 1));
}

TEST_CASE("medium: a read in flight ends in CHECK CONDITION, and its medium is not let go before") {
  for (const bool dma : {false, true}) {
    for (const bool empty : {false, true}) {
      CAPTURE(dma);
      CAPTURE(empty);
      ChangerRig rig;
      PacketHost cd(rig, kPlace);
      const HostDriver::Region region{kBuffer, 4096};
      rig.first.node->hold(Kind::Read);
      if (dma) {
        cd.start_dma(PacketHost::read10(8, 2), std::span(&region, 1));
      } else {
        REQUIRE(cd.start(2048));
        cd.send(PacketHost::read10(8, 2));
      }
      rig.first.node->wait_held(Kind::Read);
      const Medium second = make_medium(rig, 2);
      const auto taken = empty ? rig.eject() : rig.insert(second);
      CHECK(taken == rig.first.disk);
      CHECK((cd.host.alternate_status() & kBsy) != 0);
      std::atomic<bool> let_go{false};
      std::thread closer([&] {
        rig.let_go(*taken);
        let_go = true;
      });
      CHECK((cd.host.alternate_status() & kBsy) != 0);
      CHECK(!let_go);
      rig.first.node->release(Kind::Read);
      closer.join();
      const PacketAnswer answer = cd.finish();
      CHECK(answer.status == (kReady | kErr));
      CHECK(answer.data.empty());
      CHECK(cd.sense() == (empty ? kMediumNotPresentTrayOpen : kMediumMayHaveChanged));
      if (empty) rig.insert(second);
      if (empty) cd.sense();
      cd.host.bm_out(kBmCommand, 0);
      CHECK(cd.pio({kTestUnitReady}).good());  // told with the read
      CHECK(cd.pio(PacketHost::read10(8, 2)).data == second.part(8, 2));
    }
  }
}

TEST_CASE(
    "medium: changed in the middle of a PIO read, what lies ready comes from the old one and then no more") {
  ChangerRig rig;
  PacketHost cd(rig, kPlace);
  constexpr uint32_t kLimit = 2048, kCount = 16, kStage = 8192;
  REQUIRE(cd.start(kLimit));
  cd.send(PacketHost::read10(4, kCount));
  cd.host.line.wait_asserted();
  std::vector<uint8_t> head(kLimit / 2);
  cd.host.ide_.command_block(kPlace / 2).read_repeated(kData, head, 2);
  const Medium second = make_medium(rig, 2);
  const auto taken = rig.insert(second);
  rig.let_go(*taken);  // no job reads: the host is to move now
  const uint64_t reads = rig.first.node->count(Kind::Read);
  std::vector<uint8_t> rest(kLimit / 2);
  cd.host.ide_.command_block(kPlace / 2).read_repeated(kData, rest, 2);
  PacketAnswer answer = cd.finish();
  CHECK(answer.status == (kReady | kErr));
  CHECK(cd.sense() == kMediumMayHaveChanged);
  std::vector<uint8_t> got = head;
  got.insert(got.end(), rest.begin(), rest.end());
  got.insert(got.end(), answer.data.begin(), answer.data.end());
  CHECK(got == rig.first.part(4, kStage / kDiscBlockBytes));
  CHECK(rig.first.node->count(Kind::Read) == reads);
  CHECK(second.node->count(Kind::Read) == 0);
  CHECK(cd.pio(PacketHost::read10(4, kCount)).data == second.part(4, kCount));
}

TEST_CASE("medium: a DMA read whose engine has not started ends at once") {
  ChangerRig rig;
  PacketHost cd(rig, kPlace);
  REQUIRE(cd.start(0, kPacketDma));
  cd.send(PacketHost::read10(0, 2));
  CHECK((cd.host.alternate_status() & kBsy) != 0);
  rig.eject();
  CHECK(cd.finish().status == (kReady | kErr));
  CHECK(cd.sense() == kMediumNotPresentTrayOpen);
  CHECK(rig.first.node->count(Kind::Read) == 0);

  // An answer that is not from the medium comes all the same.
  REQUIRE(cd.start(0, kPacketDma));
  cd.send({kInquiry, 0, 0, 0, 36});
  rig.insert(make_medium(rig, 2));
  const HostDriver::Region region{kBuffer, 36};
  cd.host.put_table(HostDriver::kTableAddress, std::span(&region, 1));
  cd.host.bm_table(HostDriver::kTableAddress);
  cd.host.bm_out(kBmCommand, kBmToMemory | kBmStart);
  CHECK(cd.host.finish_dma(false).opcode == kReady);
  CHECK(rig.ram_bytes(kBuffer, 1)[0] == 5);
}

TEST_CASE("medium: a read that a reset let go of still holds its medium until it has ended") {
  ChangerRig rig;
  PacketHost cd(rig, kPlace);
  rig.first.node->hold(Kind::Read);
  REQUIRE(cd.start(2048));
  cd.send(PacketHost::read10(0, 1));
  rig.first.node->wait_held(Kind::Read);
  cd.host.soft_reset();
  const Medium second = make_medium(rig, 2);
  const auto taken = rig.insert(second);
  CHECK((cd.host.alternate_status() & kBsy) != 0);
  rig.first.node->release(Kind::Read);
  rig.let_go(*taken);
  CHECK(cd.host.wait_not_busy() == 0);
  CHECK(rig.lines[1].level() == false);
  CHECK(cd.refusal({kTestUnitReady}) == kMediumMayHaveChanged);
  CHECK(cd.pio(PacketHost::read10(0, 1)).data == second.part(0, 1));
}

// A guest that reads as fast as it can, by PIO and DMA, opens and locks the tray, and resets the drive, while
// somebody changes its media, each of which is gone for good once it is let go.
TEST_CASE("medium: changed while the guest hammers: what a good read brings is from one medium") {
  ChangerRig rig;
  std::atomic<bool> done{false};
  std::atomic<unsigned> mixed{0}, good{0};
  std::thread guest([&] {
    PacketHost cd(rig, kPlace);
    std::mt19937 random(5);
    while (!done) {
      switch (random() % 16) {
        case 0:
          cd.pio(lock(random() % 2));
          break;
        case 1:
          cd.pio(move_tray(random() % 4));
          break;
        case 2:
          cd.host.bm_out(kBmCommand, 0);
          REQUIRE(cd.start(2048));
          cd.send(PacketHost::read10(0, 8));
          cd.host.out(kCommand, kDeviceReset);
          cd.host.wait_not_busy();
          break;
        default: {
          const uint32_t block = random() % 32, count = 1 + random() % 24;
          PacketAnswer answer;
          if (random() % 2) {
            answer = cd.pio(PacketHost::read10(block, count), 1024u << random() % 4);
          } else {
            answer = cd.dma(PacketHost::read10(block, count), count * kDiscBlockBytes);
            cd.host.bm_out(kBmCommand, 0);
          }
          if (!answer.good()) break;
          ++good;
          // The first byte says which medium it is.
          const auto seed = static_cast<uint8_t>(answer.data[0] - Rig::pattern(0, block * kDiscBlockBytes));
          for (std::size_t i = 0; i < answer.data.size(); ++i)
            if (answer.data[i] != Rig::pattern(seed, block * kDiscBlockBytes + i)) {
              ++mixed;
              break;
            }
        }
      }
    }
  });
  std::mt19937 random(6);
  for (unsigned round = 0; round < kRounds; ++round) {
    std::shared_ptr<Disk> disk;
    if (random() % 4 != 0) disk = make_medium(rig, static_cast<uint8_t>(round)).disk;
    const bool changed = rig.drive().change_medium(0, disk, random() % 2);
    if (changed && disk) rig.let_go(*disk);
    if (random() % 4 == 0) rig.drive().open_tray(0, random() % 2);
    if (random() % 2) rig.drive().close_tray(0);
    rig.drive().tray(0);
    // Give it a turn, so that there is something to read now and then.
    for (const unsigned before = good; good == before && random() % 64;) std::this_thread::yield();
  }
  const Medium last = make_medium(rig, 99);
  rig.first.disk = rig.insert(last, true);
  done = true;
  guest.join();
  CHECK(mixed == 0);
  CHECK(good > 0);
  PacketHost cd(rig, kPlace);
  cd.pio(move_tray(true));
  cd.pio({kTestUnitReady});
  cd.sense();
  CHECK(cd.pio(PacketHost::read10(0, 4)).data == last.part(0, 4));
}

}  // namespace
}  // namespace spindle::ide::test
