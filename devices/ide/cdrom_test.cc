// The MMC commands: what they answer, what they refuse and why, and the medium's errors.
#include "devices/ide/cdrom.h"

#include <doctest/doctest.h>

#include "block/filters/null_node.h"
#include "devices/ide/packet_driver.h"

namespace spindle::ide::test {
namespace {

RigOptions with_disc(uint64_t bytes = 4u << 20) {
  return {.places = {}, .discs = {2}, .disc_bytes = bytes};
}
RigOptions without_disc() {
  return {.places = {}, .empty_drives = {2}};
}
CdbBytes open_tray() {
  return {kStartStopUnit, 0, 0, 0, 2};
}
CdbBytes close_tray() {
  return {kStartStopUnit, 0, 0, 0, 3};
}
CdbBytes media_event() {
  return {kGetEventStatus, 1, 0, 0, 1u << 4, 0, 0, 0, 8};
}

TEST_CASE("mmc: a drive with a medium") {
  Rig rig(with_disc());
  const auto content = Rig::pattern_bytes(9, 4u << 20);
  rig.node().put(0, content);
  PacketHost cd(rig, 2);
  CHECK(cd.pio({kTestUnitReady}).good());
  const PacketAnswer inquiry = cd.pio({kInquiry, 0, 0, 0, 255});
  CHECK(inquiry.data.size() == 36);
  CHECK(inquiry.data[0] == 5);
  CHECK(std::string(inquiry.data.begin() + 8, inquiry.data.end()) == "SPINDLE DVD-ROM         1.0 ");
  const PacketAnswer capacity = cd.pio({kReadCapacity});
  CHECK(capacity.be32(0) == 2047);
  CHECK(capacity.be32(4) == 2048);
  for (const CdbBytes& cdb : {PacketHost::read10(2046, 2), PacketHost::read12(2046, 2),
                              CdbBytes{kReadCd, 0, 0, 0, 0x07, 0xfe, 0, 0, 2, 0x10},
                              CdbBytes{kReadCd, 2 << 2, 0, 0, 0x07, 0xfe, 0, 0, 2, 0x10}}) {
    const PacketAnswer answer = cd.pio(cdb);
    CHECK(answer.good());
    CHECK(std::equal(answer.data.begin(), answer.data.end(), content.end() - 4096, content.end()));
  }
  CHECK(cd.pio({kReadCd, 0, 0, 0, 0, 0, 0, 0, 2, 0}).data.empty());
  CHECK(cd.pio({kSeek10, 0, 0, 0, 0x07, 0xff}).good());
  CHECK(cd.pio({kSetCdSpeed, 0, 0xff, 0xff}).good());
  const PacketAnswer mechanism = cd.pio({kMechanismStatus, 0, 0, 0, 0, 0, 0, 0, 0, 8});
  CHECK(mechanism.data == std::vector<uint8_t>{0, 0, 0, 0, 0, 1, 0, 0});
  const PacketAnswer disc = cd.pio({kReadDiscInformation, 0, 0, 0, 0, 0, 0, 0, 34});
  CHECK(disc.data.size() == 34);
  CHECK(disc.be16(0) == 32);
  CHECK(disc.data[2] == 0x0e);
  CHECK(cd.pio({kReadDiscInformation, 0, 0, 0, 0, 0, 0, 0, 2}).data.size() == 2);
}

TEST_CASE("mmc: a table of contents with one data track, in three formats") {
  Rig rig(with_disc());  // 2,048 blocks: the lead-out is at 2048 + 150 = 29 seconds and 23 frames
  PacketHost cd(rig, 2);
  const auto toc = [&](uint8_t msf, uint8_t format, uint8_t track, uint8_t legacy = 0) {
    return cd.pio({kReadToc, msf, format, 0, 0, 0, track, 0x03, 0x24, legacy});
  };
  using Bytes = std::vector<uint8_t>;
  CHECK(toc(0, 0, 0).data == Bytes{0, 18, 1, 1, 0, 0x14, 1, 0, 0, 0, 0, 0, 0, 0x14, 0xaa, 0, 0, 0, 0x08, 0});
  CHECK(toc(2, 0, 1).data == Bytes{0, 18, 1, 1, 0, 0x14, 1, 0, 0, 0, 2, 0, 0, 0x14, 0xaa, 0, 0, 0, 29, 23});
  CHECK(toc(0, 0, 0xaa).data == Bytes{0, 10, 1, 1, 0, 0x14, 0xaa, 0, 0, 0, 0x08, 0});
  CHECK(toc(0, 1, 0).data == Bytes{0, 10, 1, 1, 0, 0x14, 1, 0, 0, 0, 0, 0});
  CHECK(toc(0, 0, 0, 1u << 6).data == toc(0, 1, 0).data);  // as SFF-8020 hosts say it
  const Bytes raw = toc(2, 2, 1).data;
  CHECK(raw.size() == 48);
  CHECK(raw[1] == 46);
  CHECK(Bytes(raw.begin() + 26, raw.begin() + 37) == Bytes{1, 0x14, 0, 0xa2, 0, 0, 0, 0, 0, 29, 23});
  CHECK(cd.refusal({kReadToc, 0, 0, 0, 0, 0, 2, 0, 20}) == kInvalidFieldInCdb);
  CHECK(cd.refusal({kReadToc, 0, 5, 0, 0, 0, 0, 0, 20}) == kInvalidFieldInCdb);
  CHECK(cd.pio({kReadToc, 0, 0, 0, 0, 0, 0, 0, 4}).data == Bytes{0, 18, 1, 1});
}

TEST_CASE("mmc: minutes end where a byte does") {
  Rig rig({.places = {}});
  auto node =
      std::make_shared<NullNode>(rig.reactor_thread->reactor(), NullNode::Options{.size = 8ull << 30});
  rig.disks.push_back(std::make_shared<Disk>(node, DiskOptions{.id = "dvd", .read_only = true}));
  rig.attach_cdrom(2, rig.disks.back(), {});
  PacketHost cd(rig, 2);
  const PacketAnswer answer = cd.pio({kReadToc, 2, 0, 0, 0, 0, 0xaa, 0, 12});
  CHECK(answer.be32(8) == (255u << 16 | 59u << 8 | 74u));
  CHECK(cd.pio({kGetConfiguration, 0, 0, 0, 0, 0, 0, 0, 8}).be16(6) == 0x0010);  // a DVD
}

TEST_CASE("mmc: mode pages") {
  Rig rig(with_disc());
  PacketHost cd(rig, 2);
  const auto mode = [&](uint8_t page) { return cd.pio({kModeSense10, 0, page, 0, 0, 0, 0, 0, 128}); };
  const PacketAnswer recovery = mode(0x01);
  CHECK(recovery.data.size() == 16);
  CHECK(recovery.be16(0) == 14);
  CHECK(recovery.be16(8) == 0x0106);
  const PacketAnswer capabilities = mode(0x2a);
  CHECK(capabilities.data.size() == 28);
  CHECK(capabilities.be16(8) == 0x2a12);
  CHECK(capabilities.data[14] == 0x29);  // a tray that opens and can be locked
  CHECK(mode(0x3f).data.size() == 36);
  CHECK(mode(0x80 | 0x2a).data == capabilities.data);
  const PacketAnswer changeable = mode(0x40 | 0x2a);
  CHECK(std::all_of(changeable.data.begin() + 10, changeable.data.end(), [](uint8_t b) { return b == 0; }));
  CHECK(cd.refusal({kModeSense10, 0, 0xc0 | 0x2a, 0, 0, 0, 0, 0, 128}) == kSavingNotSupported);
  CHECK(cd.refusal({kModeSense10, 0, 0x05, 0, 0, 0, 0, 0, 128}) == kInvalidFieldInCdb);
  cd.pio({kPreventAllow, 0, 0, 0, 1});
  CHECK((mode(0x2a).data[14] & 2) != 0);
}

TEST_CASE("mmc: GET CONFIGURATION") {
  Rig rig(with_disc());
  PacketHost cd(rig, 2);
  const auto features = [&](uint8_t which, uint8_t first) {
    const PacketAnswer answer = cd.pio({kGetConfiguration, which, 0, first, 0, 0, 0, 0x10, 0});
    CHECK(answer.be32(0) == answer.data.size() - 4);
    std::vector<uint32_t> codes;
    for (std::size_t at = 8; at < answer.data.size(); at += 4 + answer.data[at + 3])
      codes.push_back(answer.be16(at));
    return codes;
  };
  CHECK(cd.pio({kGetConfiguration, 0, 0, 0, 0, 0, 0, 0, 8}).be16(6) == 0x0008);
  CHECK(features(0, 0) == std::vector<uint32_t>{0, 1, 2, 3, 0x10, 0x1e});
  CHECK(features(0, 3) == std::vector<uint32_t>{3, 0x10, 0x1e});
  CHECK(features(2, 0x10) == std::vector<uint32_t>{0x10});
  CHECK(features(2, 0x11).empty());
  cd.pio(open_tray());
  CHECK(features(1, 0) == std::vector<uint32_t>{0, 1, 2, 3});
  CHECK(cd.pio({kGetConfiguration, 0, 0, 0, 0, 0, 0, 0, 8}).be16(6) == 0);
  CHECK(cd.refusal({kGetConfiguration, 3, 0, 0, 0, 0, 0, 0, 8}) == kInvalidFieldInCdb);
}

TEST_CASE("mmc: what is refused, and with which sense") {
  Rig rig(with_disc());
  PacketHost cd(rig, 2);
  for (uint8_t opcode : {0x04, 0x15, 0x1a, 0x2a, 0x2e, 0x35, 0x42, 0x55, 0xaa, 0xad, 0xff})
    CHECK(cd.refusal({opcode}) == kInvalidOperationCode);
  CHECK(cd.sense() == Sense{});  // asked for once, it is gone
  for (const CdbBytes& cdb :
       {PacketHost::read10(2048, 1), PacketHost::read10(2047, 2), PacketHost::read12(0, 2049),
        PacketHost::read12(0xffffffff, 0xffffffff), PacketHost::read12(1, 0xffffffff),
        CdbBytes{kReadCd, 0, 0, 0, 0x08, 0, 0, 0, 1, 0x10}, CdbBytes{kSeek10, 0, 0, 0, 0x08, 0}}) {
    CHECK(cd.refusal(cdb) == kBlockOutOfRange);
  }
  CHECK(cd.refusal({kInquiry, 1, 0, 0, 36}) == kInvalidFieldInCdb);
  CHECK(cd.refusal({kReadCd, 0, 0, 0, 0, 0, 0, 0, 1, 0xf8}) == kInvalidFieldInCdb);
  CHECK(cd.refusal({kReadCd, 0, 0, 0, 0, 0, 0, 0, 1, 0x10, 1}) == kInvalidFieldInCdb);
  CHECK(cd.refusal({kReadCd, 1 << 2, 0, 0, 0, 0, 0, 0, 1, 0x10}) == kIllegalModeForTrack);
  CHECK(cd.refusal({kReadDiscInformation, 1, 0, 0, 0, 0, 0, 0, 34}) == kInvalidFieldInCdb);
  CHECK(cd.refusal({kGetEventStatus, 0, 0, 0, 0x10, 0, 0, 0, 8}) == kInvalidFieldInCdb);
  // Another command makes the last one's sense data void.
  CHECK(cd.pio({0xff}).key() == 5);
  CHECK(cd.pio({kTestUnitReady}).good());
  CHECK(cd.sense() == Sense{});
  CHECK(rig.node().count(Kind::Read) == 0);
}

TEST_CASE("mmc: an empty drive, and an empty medium") {
  for (bool empty_medium : {false, true}) {
    Rig rig(empty_medium ? with_disc(0) : without_disc());
    PacketHost cd(rig, 2);
    for (const CdbBytes& cdb : {CdbBytes{kTestUnitReady}, CdbBytes{kReadCapacity}, PacketHost::read10(0, 1),
                                PacketHost::read12(0, 0), CdbBytes{kReadToc, 0, 0, 0, 0, 0, 0, 0, 20},
                                CdbBytes{kReadCd, 0, 0, 0, 0, 0, 0, 0, 1, 0x10}, CdbBytes{kSeek10},
                                CdbBytes{kReadDiscInformation, 0, 0, 0, 0, 0, 0, 0, 34}}) {
      CHECK(cd.refusal(cdb) == kMediumNotPresentTrayClosed);
    }
    CHECK(cd.pio({kInquiry, 0, 0, 0, 36}).good());
    CHECK(cd.pio({kModeSense10, 0, 0x2a, 0, 0, 0, 0, 0, 28}).data[2] == 0x70);
    CHECK(cd.pio(open_tray()).good());
    CHECK(cd.refusal({kTestUnitReady}) == kMediumNotPresentTrayOpen);
    CHECK((cd.pio({kMechanismStatus, 0, 0, 0, 0, 0, 0, 0, 0, 8}).data[1] & 0x10) != 0);
    CHECK(cd.pio(close_tray()).good());
    CHECK(cd.refusal({kTestUnitReady}) == kMediumNotPresentTrayClosed);
  }
}

TEST_CASE("mmc: the guest opens and closes the tray") {
  Rig rig(with_disc());
  PacketHost cd(rig, 2);
  CHECK(cd.pio(media_event()).data == std::vector<uint8_t>{0, 6, 4, 0x10, 0, 2, 0, 0});
  CHECK(cd.pio({kPreventAllow, 0, 0, 0, 1}).good());
  CHECK(cd.refusal(open_tray()) == kMediumRemovalPrevented);
  CHECK(cd.pio({kTestUnitReady}).good());
  CHECK(cd.pio({kPreventAllow}).good());
  CHECK(cd.pio({kStartStopUnit, 0, 0, 0, 0x20 | 2}).good());  // a power condition moves no tray
  CHECK(cd.pio({kStartStopUnit}).good());
  CHECK(cd.pio({kTestUnitReady}).good());
  CHECK(cd.pio(open_tray()).good());
  CHECK(cd.refusal({kTestUnitReady}) == kMediumNotPresentTrayOpen);
  CHECK(cd.pio(media_event()).data == std::vector<uint8_t>{0, 6, 4, 0x10, 3, 1, 0, 0});
  CHECK(cd.pio(media_event()).data[4] == 0);
  CHECK(cd.pio(close_tray()).good());
  // Once, a unit attention; INQUIRY and the event do not wait for it.
  CHECK(cd.pio({kInquiry, 0, 0, 0, 36}).good());
  CHECK(cd.pio({kGetEventStatus, 1, 0, 0, 0x10, 0, 0, 0, 4}).data.size() ==
        4);  // too little to tell the event
  CHECK(cd.pio(media_event()).data == std::vector<uint8_t>{0, 6, 4, 0x10, 2, 2, 0, 0});
  CHECK(cd.refusal({kTestUnitReady}) == kMediumMayHaveChanged);
  CHECK(cd.pio({kTestUnitReady}).good());
  // Asked for by REQUEST SENSE it is told too.
  cd.pio(open_tray());
  cd.pio(close_tray());
  CHECK(cd.sense() == kMediumMayHaveChanged);
  CHECK(cd.pio({kTestUnitReady}).good());
  CHECK(cd.pio({kGetEventStatus, 1, 0, 0, 2, 0, 0, 0, 8}).data == std::vector<uint8_t>{0, 2, 0x80, 0x10});
}

TEST_CASE("mmc: a machine reset unlocks the tray, a soft reset does not") {
  Rig rig(with_disc());
  PacketHost cd(rig, 2);
  cd.pio({kPreventAllow, 0, 0, 0, 1});
  cd.host.soft_reset();
  cd.host.wait_not_busy();
  CHECK(cd.refusal(open_tray()) == kMediumRemovalPrevented);
  rig.ide->reset();
  rig.power_up();
  cd.host.wait_not_busy();
  CHECK(cd.pio(open_tray()).good());
}

TEST_CASE("mmc: a medium that ends within a block") {
  Rig rig(with_disc(5 * kDiscBlockBytes + 3 * kSectorBytes));
  const auto content = Rig::pattern_bytes(4, rig.node().size());
  rig.node().put(0, content);
  PacketHost cd(rig, 2);
  CHECK(cd.pio({kReadCapacity}).be32(0) == 5);
  std::vector<uint8_t> padded = content;
  padded.resize(6 * kDiscBlockBytes);
  CHECK(cd.pio(PacketHost::read10(0, 6)).data == padded);
  rig.fill(0x20000, 6 * kDiscBlockBytes, 77);
  CHECK(cd.dma(PacketHost::read10(0, 6), 6 * kDiscBlockBytes).data == padded);
  CHECK(cd.refusal(PacketHost::read10(5, 2)) == kBlockOutOfRange);
}

TEST_CASE("mmc: a block that cannot be read") {
  Rig rig(with_disc());
  const auto content = Rig::pattern_bytes(4, rig.node().size());
  rig.node().put(0, content);
  PacketHost cd(rig, 2);
  constexpr uint32_t kBad = 37;
  rig.node().fail(Kind::Read, kBad * kDiscBlockBytes + 700, 1);
  Sense expected = kUnrecoveredReadError;
  expected.has_block = true;
  expected.block = kBad;
  PacketAnswer answer = cd.dma(PacketHost::read10(30, 20), 20 * kDiscBlockBytes);
  CHECK(answer.status == (kReady | kErr));
  CHECK(answer.error == 3 << 4);
  CHECK(cd.sense() == expected);
  const auto good = static_cast<std::ptrdiff_t>((kBad - 30) * kDiscBlockBytes);
  CHECK(std::equal(answer.data.begin(), answer.data.begin() + good, content.begin() + 30 * kDiscBlockBytes));

  // By PIO the block that is named is the one after what the host has got.
  answer = cd.pio(PacketHost::read10(30, 20));
  CHECK(answer.key() == 3);
  const Sense told = cd.sense();
  CHECK(told.code == 0x11);
  CHECK(told.block == 30 + answer.data.size() / kDiscBlockBytes);
  CHECK(told.block <= kBad);
  CHECK(std::equal(answer.data.begin(), answer.data.end(), content.begin() + 30 * kDiscBlockBytes));
  rig.node().heal();
  CHECK(cd.pio(PacketHost::read10(30, 20)).good());
}

}  // namespace
}  // namespace spindle::ide::test
