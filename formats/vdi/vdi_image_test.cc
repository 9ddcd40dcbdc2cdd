// vdi as tools use it: check and repair of every kind of damage, compaction, resize, and images that are no
// good.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>

#include "block/little_endian.h"
#include "block/test_support/model_check.h"
#include "formats/test_support/vdi_bench.h"
#include "formats/vdi/resize.h"

namespace spindle {
namespace {

using test::ModelCheck;
using test::run_command;
using test::VdiBench;

constexpr uint64_t kBlock = 64 << 10;

// An image of 32 blocks with `count` of them written, each full of its letter, and ways to damage it.
struct Damaged : VdiBench {
  std::string path;
  vdi::Header layout;

  explicit Damaged(unsigned count) {
    path = create("image", 32 * kBlock, {{"block_size", "64k"}});
    auto node = open(path);
    for (unsigned i = 0; i < count; ++i) write(*node, i * kBlock, content(i));
    close(node);
    layout = header(path);
  }
  static std::string content(unsigned block) { return std::string(kBlock, static_cast<char>('A' + block)); }

  void poke(uint64_t offset, uint32_t value) {
    auto node = file(path);
    std::string bytes(4, '\0');
    put32(reinterpret_cast<std::byte*>(bytes.data()), value);
    write(*node, offset, bytes);
    require(reactor->wait(node->close()));
  }
  void set_entry(uint32_t block, uint32_t entry) { poke(layout.map_offset + 4 * block, entry); }
  void set_count(uint32_t count) { poke(0x184, count); }
  void set_length(uint64_t bytes) { std::filesystem::resize_file(path, bytes); }

  std::string content_of(unsigned block) {
    auto node = open(path);
    auto text = read(*node, block * kBlock, kBlock);
    close(node);
    return text;
  }
  void is_sound() {
    const auto report = check(path);
    CHECK(report.corruptions == 0);
    CHECK(report.leaks == 0);
    CHECK(header(path).allocated == report.allocated_clusters);  // what QEMU wants
  }
};

TEST_CASE("vdi check: a sound image is sound, and counted") {
  Damaged image(5);
  const auto report = image.check(image.path);
  CHECK(report.corruptions == 0);
  CHECK(report.leaks == 0);
  CHECK(report.messages.empty());
  CHECK(report.allocated_clusters == 5);
  CHECK(report.total_clusters == 32);
  CHECK(report.image_end_offset == std::filesystem::file_size(image.path));
}

TEST_CASE("vdi check: a place used twice gets a copy, and neither reader loses data") {
  Damaged image(5);
  image.set_entry(9, 2);
  image.set_entry(10, 2);
  const auto found = image.check(image.path);
  CHECK(found.corruptions == 2);
  CHECK(image.try_open(image.path).error()->kind == ErrorKind::Corrupt);
  auto read_only = image.try_open(image.path, {}, true);
  VdiBench::require(read_only);
  CHECK(image.read(**read_only, 9 * kBlock, 4) == "CCCC");
  image.close(*read_only);
  // Leaks are not reclaimed while it is unsettled who owns what.
  CHECK(image.check(image.path, Repair::Leaks).corruptions == 2);
  const auto mended = image.check(image.path, Repair::All);
  CHECK(mended.corruptions == 0);
  CHECK(mended.corruptions_fixed == 2);
  image.is_sound();
  for (const unsigned block : {2u, 9u, 10u}) CHECK(image.content_of(block) == Damaged::content(2));
  CHECK(image.content_of(4) == Damaged::content(4));
}

TEST_CASE("vdi check: an entry beyond the file is dropped, and the guest's range named") {
  Damaged image(5);
  image.set_entry(8, 1000);
  CHECK(image.check(image.path).corruptions == 1);
  CHECK(image.try_open(image.path).error()->kind == ErrorKind::Corrupt);
  auto read_only = image.try_open(image.path, {}, true);
  VdiBench::require(read_only);
  CHECK(image.read(**read_only, 8 * kBlock, 4) == std::string(4, '\0'));
  image.close(*read_only);
  const auto mended = image.check(image.path, Repair::All);
  CHECK(mended.corruptions_fixed == 1);
  CHECK(mended.messages.front().find(fmt::format("bytes {} to {}", 8 * kBlock, 9 * kBlock - 1)) !=
        std::string::npos);
  image.is_sound();
  CHECK(image.content_of(8) == std::string(kBlock, '\0'));
  CHECK(image.content_of(4) == Damaged::content(4));
}

TEST_CASE("vdi check: a count too low is raised before another program overwrites a block") {
  Damaged image(5);
  image.set_count(3);
  const auto found = image.check(image.path);
  CHECK(found.corruptions == 1);
  CHECK(found.leaks == 0);
  CHECK(image.check(image.path, Repair::All).corruptions_fixed == 1);
  image.is_sound();
  CHECK(image.header(image.path).allocated == 5);
  // Whoever just opens and writes raises it too.
  image.set_count(0);
  auto node = image.open(image.path);
  image.write(*node, 0, "x");
  image.flush(*node);
  CHECK(image.header(image.path).allocated == 5);
  image.close(node);
  CHECK(image.content_of(4) == Damaged::content(4));
}

TEST_CASE(
    "vdi check: a count too high and places of nobody are leaks, which moving the last blocks reclaims") {
  Damaged image(8);
  image.set_count(20);
  image.set_entry(2, vdi::kFree);
  image.set_entry(5, vdi::kZero);
  const auto found = image.check(image.path);
  CHECK(found.corruptions == 0);
  CHECK(found.leaks == 14);
  const auto mended = image.check(image.path, Repair::Leaks);
  CHECK(mended.leaks_fixed == 14);
  CHECK(mended.leaks == 0);
  image.is_sound();
  CHECK(std::filesystem::file_size(image.path) == image.layout.place_offset(6));
  for (const unsigned block : {0u, 1u, 3u, 4u, 6u, 7u})
    CHECK(image.content_of(block) == Damaged::content(block));
  CHECK(image.content_of(2) == std::string(kBlock, '\0'));
}

TEST_CASE("vdi check: a file that ends within a block reads zeroes there, and is mended") {
  Damaged image(5);
  image.set_length(image.layout.place_offset(4) + 512);
  CHECK(image.check(image.path).corruptions == 1);
  auto read_only = image.try_open(image.path, {}, true);
  VdiBench::require(read_only);
  const std::string expected = std::string(512, 'E') + std::string(kBlock - 512, '\0');
  CHECK(image.read(**read_only, 4 * kBlock, kBlock) == expected);
  image.close(*read_only);
  CHECK(image.check(image.path, Repair::All).corruptions_fixed == 1);
  image.is_sound();
  CHECK(image.content_of(4) == expected);
}

TEST_CASE("vdi check: all kinds of damage at once") {
  Damaged image(8);
  image.set_entry(20, 3);
  image.set_entry(21, 5000);
  image.set_entry(4, vdi::kFree);
  image.set_count(1);
  image.set_length(image.layout.place_offset(7) + 1024);
  const auto mended = image.check(image.path, Repair::All);
  CHECK(mended.corruptions_fixed == 4);
  image.is_sound();
  CHECK(image.content_of(3) == Damaged::content(3));
  CHECK(image.content_of(20) == Damaged::content(3));
  CHECK(image.content_of(6) == Damaged::content(6));
  CHECK(image.content_of(7) == std::string(1024, 'H') + std::string(kBlock - 1024, '\0'));
}

TEST_CASE("vdi check: thousands of findings are counted, and told in a bounded number of lines") {
  VdiBench bench;
  const std::string path = bench.create("image", 4096 * 4096, {{"block_size", "4k"}, {"static", "on"}});
  const auto layout = bench.header(path);
  auto file = bench.file(path);
  bench.write(*file, layout.map_offset, std::string(4 * 4096, '\0'));
  VdiBench::require(bench.reactor->wait(file->close()));
  const auto report = bench.check(path);
  CHECK(report.corruptions == 4095);
  CHECK(report.messages.size() == CheckReport::kMaxMessages + 1);
  CHECK(bench.check(path, Repair::All).corruptions == 0);
  CHECK(bench.check(path).corruptions == 0);
}

TEST_CASE("vdi check: a map of zeroes fills no disk with copies") {
  VdiBench bench;
  const std::string path = bench.create("image", uint64_t{60'000} << 20);
  const auto layout = bench.header(path);
  auto file = bench.file(path);
  VdiBench::require(bench.reactor->wait(file->resize(layout.place_offset(1))));
  bench.write(*file, layout.map_offset, std::string(layout.map_bytes(), '\0'));
  VdiBench::require(bench.reactor->wait(file->close()));
  CHECK(bench.check(path).corruptions >= 59'999);
  const auto before = test::run_command("md5sum " + path).output;
  file = bench.file(path);
  const auto refused = bench.reactor->wait(vdi::format().check(file, Repair::All));
  REQUIRE(!refused.has_value());
  CHECK(refused.error()->kind == ErrorKind::Corrupt);
  VdiBench::require(bench.reactor->wait(file->close()));
  CHECK(test::run_command("md5sum " + path).output == before);
}

TEST_CASE("vdi check: a repair of a file that cannot be written says so") {
  Damaged image(5);
  image.set_count(20);
  auto file = image.file(image.path, true);
  const auto report = image.reactor->wait(vdi::format().check(file, Repair::Leaks));
  REQUIRE(!report.has_value());
  CHECK(report.error()->kind == ErrorKind::ReadOnly);
  VdiBench::require(image.reactor->wait(file->close()));
}

TEST_CASE("vdi compact: blocks of zeroes give their places back") {
  Damaged image(8);
  auto node = image.open(image.path);
  VdiBench::require(image.reactor->wait(node->write_zeroes(0, 2 * kBlock, {.unmap = true})));
  image.write(*node, 3 * kBlock, std::string(kBlock, '\0'));
  image.close(node);
  const auto report = image.compact(image.path);
  CHECK(report.leaks_fixed == 3);
  CHECK(report.allocated_clusters == 5);
  image.is_sound();
  CHECK(std::filesystem::file_size(image.path) == image.layout.place_offset(5));
  CHECK(image.content_of(0) == std::string(kBlock, '\0'));
  CHECK(image.content_of(7) == Damaged::content(7));
}

TEST_CASE("vdi resize: growing moves the map when it must, shrinking cuts, and grown ends read as zeroes") {
  VdiBench bench;
  // With blocks of 512 bytes and a map that begins with room for 100 of them, every kind of growth comes.
  const std::string path = bench.create("image", 100 * 512, {{"block_size", "512"}});
  auto node = bench.open(path, {{"prealloc-ahead", "4k"}});
  ModelCheck check(
      *bench.reactor, *node,
      {.seed = 21, .batches = 300, .granule = 512, .longest = 6000, .resize = true, .largest = 3 << 20});
  check.run();
  bench.close(node);
  node = bench.open(path);
  check.check(*node);
  bench.close(node);
  CHECK(bench.header(path).map_offset != 4096);
  const auto report = bench.check(path);
  CHECK(report.corruptions == 0);
  CHECK(report.leaks == 0);
}

TEST_CASE("vdi resize: QEMU still reads it") {
  if (!test::have_program("qemu-img")) return test::skipped("qemu-img is not installed");
  VdiBench bench;
  const std::string path = bench.dir.file("image");
  REQUIRE(run_command("qemu-img create -f vdi " + path + " 200M").status == 0);
  auto node = bench.open(path);
  bench.write(*node, 0, std::string(4096, '\x01'));
  bench.write(*node, 150 << 20, std::string(4096, '\x02'));
  for (const uint64_t size : {uint64_t{300} << 20, uint64_t{20} << 30, uint64_t{160} << 20}) {
    VdiBench::require(bench.reactor->wait(node->resize(size)));
    bench.write(*node, size - 512, std::string(512, '\x03'));
    bench.flush(*node);
  }
  bench.close(node);
  CHECK(run_command("qemu-img check -f vdi " + path).status == 0);
  const auto read = run_command(
      "qemu-io -f vdi -r -c 'read -P 1 0 4k' -c 'read -P 2 150M 4k' -c 'read -P 3 167771648 512' " + path);
  CHECK(read.status == 0);
  CHECK_MESSAGE(read.output.find("failed") == std::string::npos, read.output);
}

TEST_CASE("vdi resize: what cannot be is refused and changes nothing") {
  Damaged image(5);
  auto node = image.open(image.path);
  CHECK(image.reactor->wait(node->resize(1000)).error()->kind == ErrorKind::Invalid);
  CHECK(image.reactor->wait(node->resize(UINT64_MAX / 512 * 512)).error()->kind == ErrorKind::Invalid);
  CHECK(image.reactor->wait(node->resize(uint64_t{1} << 62)).error()->kind == ErrorKind::Invalid);
  image.write(*node, 31 * kBlock, "still");
  image.close(node);
  image.is_sound();
}

TEST_CASE("vdi: what others put into the header stays, whatever is done to the image") {
  Damaged image(5);
  const std::string comment = "a comment", theirs(40, '\x5a');
  {
    auto file = image.file(image.path);
    image.write(*file, 0x54, comment);
    image.write(*file, 0x1d8, theirs);
    VdiBench::require(image.reactor->wait(file->close()));
  }
  auto uuids = [&] {
    auto file = image.file(image.path);
    auto text = image.read(*file, 0x188, 64);
    CHECK(image.read(*file, 0x54, comment.size()) == comment);
    CHECK(image.read(*file, 0x1d8, theirs.size()) == theirs);
    VdiBench::require(image.reactor->wait(file->close()));
    return text;
  };
  const std::string before = uuids();
  auto node = image.open(image.path);
  image.write(*node, 20 * kBlock, "more");
  image.flush(*node);
  for (const uint64_t blocks : {40, 20000, 25})
    VdiBench::require(image.reactor->wait(node->resize(blocks * kBlock)));
  image.close(node);
  image.set_count(30);
  image.check(image.path, Repair::All);
  image.compact(image.path);
  CHECK(uuids() == before);
}

TEST_CASE("vdi create: sizes and options that cannot be are refused") {
  VdiBench bench;
  auto refused = [&](uint64_t size, FormatOptions options) {
    auto file = bench.file(bench.dir.file("image", 0));
    const auto made =
        bench.reactor->wait(vdi::format().create(file, {.size = size, .options = std::move(options)}));
    VdiBench::require(bench.reactor->wait(file->close()));
    return !made.has_value();
  };
  CHECK(refused(uint64_t{65} << 40, {}));
  CHECK(refused(UINT64_MAX, {}));
  CHECK(refused(1 << 20, {{"block_size", "1000"}}));
  CHECK(refused(1 << 20, {{"block_size", "0"}}));
  CHECK(refused(1 << 20, {{"block_size", "512M"}}));
  CHECK(refused(1 << 20, {{"static", "yes"}}));
  CHECK(!refused(1, {}));
  CHECK(!refused(uint64_t{1} << 40, {}));
}

TEST_CASE("vdi open: headers that contradict themselves give one error each, and no image is touched") {
  struct Case {
    const char* what;
    uint64_t offset;
    uint32_t value;
  };
  for (const Case& damage :
       {Case{"signature", 0x40, 1}, Case{"version", 0x44, 0x20001}, Case{"type", 0x4c, 4},
        Case{"map offset", 0x154, 100}, Case{"map in header", 0x154, 0},
        Case{"map in data", 0x154, 0xfffffe00}, Case{"data offset", 0x158, 4097},
        Case{"data in map", 0x158, 4096}, Case{"sector", 0x168, 4096}, Case{"disk size", 0x174, 1},
        Case{"block size 0", 0x178, 0}, Case{"block size", 0x178, 65'535},
        Case{"block size huge", 0x178, 1u << 31}, Case{"extra", 0x17c, 1}, Case{"blocks few", 0x180, 3},
        Case{"blocks many", 0x180, 0xffffffff}, Case{"blocks beyond data", 0x180, 1 << 20},
        Case{"link", 0x1a8, 1}, Case{"parent", 0x1b8, 1}}) {
    CAPTURE(damage.what);
    Damaged image(3);
    image.poke(damage.offset, damage.value);
    const auto before = run_command("md5sum " + image.path).output;
    for (const bool read_only : {false, true}) {
      const auto node = image.try_open(image.path, {}, read_only);
      REQUIRE(!node.has_value());
      CHECK(node.error()->message().find('\n') == std::string::npos);
      CHECK(node.error()->message().find(image.path) != std::string::npos);
    }
    auto file = image.file(image.path);
    CHECK(!image.reactor->wait(vdi::format().check(file, Repair::All)).has_value());
    VdiBench::require(image.reactor->wait(file->close()));
    CHECK(run_command("md5sum " + image.path).output == before);
  }
}

TEST_CASE("vdi open: a file cut anywhere gives an error or an image") {
  for (const uint64_t length : {0, 1, 511, 512, 513, 4095, 4096, 4100, 4223, 4224, 65'535, 65'536, 70'000}) {
    CAPTURE(length);
    Damaged image(3);
    image.set_length(length);
    const auto opened = image.try_open(image.path, {}, true);
    CHECK(opened.has_value() == (length >= 4224));
    if (opened) VdiBench::require(image.reactor->wait((*opened)->close()));
    auto file = image.file(image.path);
    const auto report = image.reactor->wait(vdi::format().check(file, Repair::All));
    VdiBench::require(image.reactor->wait(file->close()));
    if (report) image.is_sound();
  }
}

}  // namespace
}  // namespace spindle
