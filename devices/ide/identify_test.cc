// IDENTIFY DEVICE tells the truth, at every moment.
#include "devices/ide/identify.h"

#include <doctest/doctest.h>

#include <numeric>

#include "block/filters/null_node.h"
#include "devices/ide/test_driver.h"

namespace spindle::ide::test {
namespace {

std::string text(const std::vector<uint16_t>& words, unsigned first, unsigned count) {
  std::string result;
  for (unsigned i = first; i < first + count; ++i) {
    result += static_cast<char>(words[i] >> 8);
    result += static_cast<char>(words[i]);
  }
  return result;
}

bool checksum_holds(const std::vector<uint16_t>& words) {
  unsigned sum = 0;
  for (uint16_t word : words) sum += (word & 0xff) + (word >> 8);
  return (words[255] & 0xff) == 0xa5 && (sum & 0xff) == 0;
}

constexpr uint16_t kWord85WriteCache = 1u << 5;
constexpr uint16_t kWord85LookAhead = 1u << 6;

TEST_CASE("what the drive is") {
  Rig rig({.drive = {.serial = "S3R1AL", .model = "A MODEL", .firmware = "F1"}});
  HostDriver host = rig.driver();
  const auto words = host.identify();
  CHECK(checksum_holds(words));
  CHECK(words[0] == 0x0040);
  CHECK(text(words, 10, 10) == "S3R1AL              ");
  CHECK(text(words, 23, 4) == "F1      ");
  CHECK(text(words, 27, 20) == "A MODEL                                 ");
  CHECK(words[47] == 0x8010);
  CHECK((words[49] & 0x0300) == 0x0300);
  CHECK((words[53] & 6) == 6);
  const uint32_t sectors = (4u << 20) / 512;
  CHECK((words[60] | uint32_t{words[61]} << 16) == sectors);
  CHECK((words[100] | uint64_t{words[101]} << 16 | uint64_t{words[102]} << 32 | uint64_t{words[103]} << 48) ==
        sectors);
  CHECK(words[1] == sectors / (16 * 63));
  CHECK(words[3] == 16);
  CHECK(words[6] == 63);
  CHECK(words[80] == 0x01f0);
  CHECK((words[82] & 0x0060) == 0x0060);
  CHECK(words[83] == 0x7400);  // valid, FLUSH CACHE EXT, FLUSH CACHE, 48-bit
  CHECK(words[84] == 0x4041);  // valid, FUA, SMART error log
  CHECK(words[86] == 0x3400);
  CHECK(words[87] == 0x4041);
  CHECK((words[93] & 0xe000) == 0x6000);  // libata's test for an 80-conductor cable
  CHECK(words[106] == 0x4000);
  CHECK(words[217] == 1);
}

TEST_CASE("sizes that do not fit 28 bits, and none at all") {
  auto reactor = *Reactor::create();
  const auto identify_size = [&](uint64_t bytes) {
    const auto node = std::make_shared<NullNode>(*reactor, NullNode::Options{.size = bytes});
    const Drive drive(std::make_shared<Disk>(node, DiskOptions{.id = "null"}), {}, 0);
    std::vector<uint16_t> words(256);
    identify_device(drive, std::span(reinterpret_cast<uint8_t*>(words.data()), kSectorBytes));
    CHECK(checksum_holds(words));
    return words;
  };
  const auto big = identify_size(3ull << 40);
  CHECK((big[60] | uint32_t{big[61]} << 16) == 0x0fffffff);
  CHECK(big[1] == 16383);
  CHECK((big[100] | uint64_t{big[101]} << 16 | uint64_t{big[102]} << 32) == (3ull << 40) / 512);
  const auto empty = identify_size(0);
  CHECK((empty[60] | empty[61] | empty[100] | empty[101] | empty[102] | empty[103]) == 0);
}

TEST_CASE("a disk that is resized says so in the next IDENTIFY DEVICE, and ends there") {
  Rig rig;
  HostDriver host = rig.driver();
  const auto sectors = [&] {
    const auto words = host.identify();
    CHECK((words[100] | uint32_t{words[101]} << 16) == (words[60] | uint32_t{words[61]} << 16));
    return words[60] | uint32_t{words[61]} << 16;
  };
  REQUIRE(sectors() == (4u << 20) / 512);
  for (const uint64_t bytes : {uint64_t{1} << 20, uint64_t{8} << 20}) {
    REQUIRE(rig.reactor_thread->call([&] { return rig.disk().resize(bytes); }).has_value());
    CHECK(sectors() == bytes / 512);
  }
}

TEST_CASE("sector size and rotation come from the node") {
  Rig rig({.physical_sector = 4096, .rotational = true, .places = {0, 1}});
  HostDriver host = rig.driver();
  const auto words = host.identify();
  CHECK(words[106] == 0x6003);
  CHECK(words[209] == 0x4000);
  CHECK(words[217] == 7200);
  CHECK((words[93] & 0x00c1) == 0x0001);             // device 0, not alone
  CHECK((host.identify(1)[93] & 0xff00) == 0x6b00);  // device 1
  CHECK((Rig({.places = {0}}).driver().identify()[93] & 0x00c1) == 0x0041);
}

TEST_CASE("the modes in force follow SET FEATURES") {
  Rig rig;
  HostDriver host = rig.driver();
  const auto set = [&](uint16_t features, uint16_t count = 0) {
    const Registers after = host.non_data({.opcode = 0xef, .features = features, .count = count});
    CHECK(checksum_holds(host.identify()));
    return after.opcode == kReady;
  };
  CHECK((host.identify()[85] & kWord85WriteCache) != 0);
  CHECK(set(kFeatureDisableWriteCache));
  CHECK((host.identify()[85] & kWord85WriteCache) == 0);
  CHECK(set(kFeatureEnableWriteCache));
  CHECK((host.identify()[85] & kWord85WriteCache) != 0);
  CHECK((host.identify()[85] & kWord85LookAhead) != 0);
  CHECK(set(kFeatureDisableLookAhead));
  CHECK((host.identify()[85] & kWord85LookAhead) == 0);
  CHECK(set(kFeatureEnableLookAhead));
  CHECK((host.identify()[85] & kWord85LookAhead) != 0);

  CHECK(host.identify()[63] == 0x0007);
  CHECK(host.identify()[88] == 0x003f);
  CHECK(set(kFeatureSetTransferMode, kModeUltraDma | 5));
  CHECK(host.identify()[63] == 0x0007);
  CHECK(host.identify()[88] == 0x203f);
  CHECK(set(kFeatureSetTransferMode, kModeMultiwordDma | 2));
  CHECK(host.identify()[63] == 0x0407);
  CHECK(host.identify()[88] == 0x003f);
  CHECK(set(kFeatureSetTransferMode, kModePio | 4));
  CHECK(host.identify()[63] == 0x0007);
  for (uint16_t mode : {0x02, 0x0d, 0x10, 0x23, 0x46, 0x47, 0x80, 0xff}) {
    CAPTURE(mode);
    CHECK_FALSE(set(kFeatureSetTransferMode, mode));
  }
  for (uint16_t other : {0x00, 0x01, 0x04, 0x05, 0x10, 0x42, 0x5d, 0x85, 0xc2, 0xff}) {
    CAPTURE(other);
    CHECK_FALSE(set(other));
  }
}

TEST_CASE("strings that do not fit are refused, and so are places that are taken") {
  Rig rig;
  const auto attach = [&](unsigned channel, unsigned unit, const DriveOptions& options) {
    return rig.ide->attach(channel, unit, rig.disks[0], options).has_value();
  };
  CHECK_FALSE(attach(0, 0, {}));
  CHECK_FALSE(attach(0, 2, {}));
  CHECK_FALSE(attach(2, 0, {}));
  CHECK_FALSE(attach(1, 0, {.serial = "123456789012345678901"}));
  CHECK_FALSE(attach(1, 0, {.serial = "a\nb"}));
  CHECK_FALSE(attach(1, 0, {.firmware = "123456789"}));
  CHECK(attach(1, 0, {.serial = "12345678901234567890"}));
}

}  // namespace
}  // namespace spindle::ide::test
