// The snapshot table: what it holds comes back, damage is refused, and QEMU's tables are read.
#include "formats/qcow2/snapshot_table.h"

#include <doctest/doctest.h>

#include "block/big_endian.h"
#include "block/protocols/file_node.h"
#include "block/test_support/environment.h"

using namespace spindle;
using namespace spindle::qcow2;

namespace {

std::vector<Snapshot> two_snapshots() {
  Snapshot first{.l1_offset = 5 << 16, .l1_entries = 7, .id = "1", .name = "before the update"};
  first.date_seconds = 1'700'000'000;
  first.date_nanoseconds = 5;
  first.vm_clock_nanoseconds = uint64_t{1} << 40;
  first.vm_state_size = uint64_t{5} << 30;
  first.disk_size = 1 << 30;
  first.instruction_count = 77;
  first.unknown_extra.assign(11, std::byte{3});
  Snapshot second{.l1_offset = 9 << 16, .l1_entries = 1, .id = "2", .name = ""};
  second.disk_size = 512;
  return {first, second};
}

}  // namespace

TEST_CASE("snapshots come back as they went, with unknown extra data") {
  const auto snapshots = two_snapshots();
  const auto bytes = encode_snapshots(snapshots, 0, "image");
  REQUIRE(bytes);
  auto table = decode_snapshots(*bytes, 2, "image");
  REQUIRE(table);
  REQUIRE(*table);
  CHECK((*table)->snapshots == snapshots);
  CHECK((*table)->bytes == bytes->size());
}

TEST_CASE("a snapshot without extra data is of the image's size") {
  std::vector<std::byte> bytes(44);
  big_endian::put16(bytes.data() + 12, 1);
  big_endian::put32(bytes.data() + 32, 4096);
  bytes[40] = std::byte{'9'};
  auto table = decode_snapshots(bytes, 1, "image");
  REQUIRE(table);
  REQUIRE(*table);
  Snapshot& only = (*table)->snapshots.front();
  CHECK(only.id == "9");
  CHECK(only.vm_state_size == 4096);
  CHECK_FALSE(only.disk_size);
  const auto again = encode_snapshots((*table)->snapshots, 12345 * 512, "image");
  REQUIRE(again);
  only.disk_size = 12345 * 512;
  CHECK((**decode_snapshots(*again, 1, "image")).snapshots.front() == only);
}

TEST_CASE("a table of snapshots that is cut off anywhere is not taken for whole") {
  const auto bytes = *encode_snapshots(two_snapshots(), 0, "image");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    auto table = decode_snapshots(std::span(bytes).first(length), 2, "image");
    REQUIRE(table);
    CHECK_FALSE(*table);
  }
}

TEST_CASE("what a table of snapshots cannot hold is refused") {
  auto bytes = *encode_snapshots(two_snapshots(), 0, "image");
  big_endian::put32(bytes.data() + 36, kMostSnapshotExtra + 1);
  CHECK(decode_snapshots(bytes, 2, "image").error()->kind == ErrorKind::Corrupt);
  auto snapshots = two_snapshots();
  snapshots[0].name.assign(65536, 'x');
  CHECK(encode_snapshots(snapshots, 0, "image").error()->kind == ErrorKind::Invalid);
  snapshots = two_snapshots();
  snapshots[1].unknown_extra.resize(kMostSnapshotExtra);
  CHECK(encode_snapshots(snapshots, 0, "image").error()->kind == ErrorKind::Invalid);
}

TEST_CASE("a snapshot's L1 table must lie in the file") {
  const Layout layout;
  Snapshot snapshot = two_snapshots().front();
  CHECK(check_snapshot_l1(snapshot, layout, 1 << 20, "image"));
  snapshot.l1_offset = 513;
  CHECK_FALSE(check_snapshot_l1(snapshot, layout, 1 << 20, "image"));
  snapshot.l1_offset = (1 << 20) - (1 << 16);
  snapshot.l1_entries = 8193;
  CHECK_FALSE(check_snapshot_l1(snapshot, layout, 1 << 20, "image"));
  snapshot.l1_entries = ~uint32_t{0};
  CHECK_FALSE(check_snapshot_l1(snapshot, layout, ~uint64_t{0}, "image"));
}

TEST_CASE("the snapshots that qemu-img makes are read") {
  if (!test::have_program("qemu-img")) return test::skipped("no qemu-img");
  test::TempDir dir;
  const std::string path = dir.file("image");
  REQUIRE(test::run_command("qemu-img create -f qcow2 " + path + " 3M && qemu-img snapshot -c one " + path +
                            " && qemu-img resize " + path + " 5M && qemu-img snapshot -c two " + path)
              .status == 0);
  auto reactor = std::move(*Reactor::create());
  auto file = FileNode::open(*reactor, {.path = path, .read_only = true});
  REQUIRE(file);
  const auto header = reactor->wait(read_header(**file));
  REQUIRE(header);
  const auto table = reactor->wait(read_snapshots(**file, *header));
  REQUIRE(table);
  REQUIRE(table->snapshots.size() == 2);
  CHECK(table->snapshots[0].name == "one");
  CHECK(table->snapshots[0].disk_size == 3 << 20);
  CHECK(table->snapshots[1].id == "2");
  CHECK(table->snapshots[1].disk_size == 5 << 20);
  Header lying = *header;
  lying.snapshots = 60000;
  CHECK(reactor->wait(read_snapshots(**file, lying)).error()->kind == ErrorKind::Corrupt);
  lying.snapshots_offset = uint64_t{1} << 50;
  CHECK(reactor->wait(read_snapshots(**file, lying)).error()->kind == ErrorKind::Corrupt);
  REQUIRE(reactor->wait((*file)->close()));
}
