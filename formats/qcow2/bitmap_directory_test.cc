// The bitmap directory: what it holds comes back, damage is refused, and QEMU's bitmaps are read.
#include "formats/qcow2/bitmap_directory.h"

#include <doctest/doctest.h>

#include "block/big_endian.h"
#include "block/protocols/file_node.h"
#include "block/test_support/environment.h"

using namespace spindle;
using namespace spindle::qcow2;

namespace {

std::vector<BitmapEntry> two_bitmaps() {
  BitmapEntry first{.table_offset = 5 << 16, .table_entries = 3, .flags = kBitmapInUse, .name = "nightly"};
  first.extra.assign(5, std::byte{8});
  BitmapEntry second{.table_offset = 6 << 16, .table_entries = 1, .flags = kBitmapAuto, .name = "b"};
  second.granularity_bits = 9;
  return {first, second};
}

}  // namespace

TEST_CASE("bitmaps come back as they went") {
  const auto entries = two_bitmaps();
  const auto bytes = encode_bitmap_directory(entries, "image");
  REQUIRE(bytes);
  const auto decoded = decode_bitmap_directory(*bytes, 2, "image");
  REQUIRE(decoded);
  CHECK(*decoded == entries);
  CHECK_FALSE(decode_bitmap_directory(*bytes, 1, "image"));
  CHECK_FALSE(decode_bitmap_directory(*bytes, 3, "image"));
}

TEST_CASE("a bitmap directory cut off anywhere is refused") {
  const auto bytes = *encode_bitmap_directory(two_bitmaps(), "image");
  for (std::size_t length = 0; length < bytes.size(); ++length)
    CHECK_FALSE(decode_bitmap_directory(std::span(bytes).first(length), 2, "image"));
}

TEST_CASE("bitmap entries out of range are refused") {
  const auto with = [](std::size_t at, uint8_t value) {
    auto bytes = *encode_bitmap_directory(two_bitmaps(), "image");
    bytes[at] = std::byte{value};
    return decode_bitmap_directory(bytes, 2, "image").has_value();
  };
  CHECK_FALSE(with(17, 8));
  CHECK_FALSE(with(17, 32));
  CHECK_FALSE(with(19, 0));
  CHECK_FALSE(with(20, 0xff));
  auto entry = two_bitmaps().front();
  const Layout layout;
  CHECK(check_bitmap_table(entry, layout, 1 << 20, "image"));
  entry.table_offset = (1 << 20) + (1 << 16);
  CHECK_FALSE(check_bitmap_table(entry, layout, 1 << 20, "image"));
  entry.table_offset = 77;
  CHECK_FALSE(check_bitmap_table(entry, layout, 1 << 20, "image"));
  CHECK(bitmap_table_entries(layout, 0, 16) == 0);
  CHECK(bitmap_table_entries(layout, 1, 16) == 1);
  CHECK(bitmap_table_entries(layout, uint64_t{1} << 35, 16) == 1);
  CHECK(bitmap_table_entries(layout, (uint64_t{1} << 35) + 1, 16) == 2);
}

TEST_CASE("the bitmaps extension counts only with its autoclear bit") {
  Header header;
  CHECK_FALSE(*bitmaps_of(header, "image"));
  set_bitmaps(header, BitmapsExtension{.bitmaps = 2, .directory_bytes = 96, .directory_offset = 7 << 16});
  const auto found = bitmaps_of(header, "image");
  REQUIRE(found);
  REQUIRE(*found);
  CHECK((*found)->directory_bytes == 96);
  header.autoclear = 0;
  CHECK_FALSE(*bitmaps_of(header, "image"));
  set_bitmaps(header, BitmapsExtension{.bitmaps = 2, .directory_bytes = 96, .directory_offset = 77});
  CHECK_FALSE(bitmaps_of(header, "image"));
  set_bitmaps(header, std::nullopt);
  CHECK(header.extensions.empty());
  CHECK(header.autoclear == 0);
}

TEST_CASE("the bitmaps that qemu-img makes are read") {
  if (!test::have_program("qemu-img")) return test::skipped("no qemu-img");
  test::TempDir dir;
  const std::string path = dir.file("image");
  REQUIRE(test::run_command("qemu-img create -f qcow2 " + path + " 3M && qemu-img bitmap --add " + path +
                            " one && qemu-img bitmap --add --disable -g 32k " + path +
                            " two && qemu-io -c 'write 1M 64k' " + path)
              .status == 0);
  auto reactor = std::move(*Reactor::create());
  auto file = FileNode::open(*reactor, {.path = path, .read_only = true});
  REQUIRE(file);
  const auto header = reactor->wait(read_header(**file));
  REQUIRE(header);
  const auto entries = reactor->wait(read_bitmap_directory(**file, *header));
  REQUIRE(entries);
  REQUIRE(entries->size() == 2);
  CHECK((*entries)[0].name == "one");
  CHECK((*entries)[0].flags == kBitmapAuto);
  CHECK((*entries)[1].granularity() == 32 << 10);
  CHECK((*entries)[1].flags == 0);
  const BitmapEntry& one = (*entries)[0];
  CHECK(one.table_entries == bitmap_table_entries(header->layout, header->disk_size, one.granularity_bits));
  REQUIRE(check_bitmap_table(one, header->layout, (*file)->size(), "image"));
  const auto table = reactor->wait(read_bitmap_table(**file, one, 0, one.table_entries));
  REQUIRE(table);
  CHECK((table->front() & kOffsetMask) != 0);
  REQUIRE(reactor->wait((*file)->close()));
}
