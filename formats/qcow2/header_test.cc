// The header: what it holds comes back, what it cannot hold is refused by name.
#include "formats/qcow2/header.h"

#include <doctest/doctest.h>

#include <cstring>

#include "block/big_endian.h"
#include "block/protocols/file_node.h"
#include "block/test_support/environment.h"

using namespace spindle;
using namespace spindle::qcow2;

namespace {

constexpr uint64_t kFileSize = 1 << 20;

Header small_header() {
  Header header;
  header.layout.cluster_bits = 12;
  header.disk_size = 1 << 20;
  header.l1_entries = 1;
  header.l1_offset = 3 << 12;
  header.refcount_table_offset = 1 << 12;
  header.refcount_table_clusters = 1;
  return header;
}

std::vector<std::byte> cluster_of(const Header& header) {
  auto bytes = encode_header(header, "image");
  REQUIRE(bytes);
  bytes->resize(header.layout.cluster_size());
  return *bytes;
}

std::string refusal(const std::vector<std::byte>& cluster) {
  auto decoded = decode_header(cluster, kFileSize, "image");
  REQUIRE_FALSE(decoded);
  return decoded.error()->message();
}

}  // namespace

TEST_CASE("a header comes back as it went, with unknown extensions and fields") {
  Header header = small_header();
  header.compatible = kLazyRefcounts | 1 << 20;
  header.autoclear = kBitmaps | 1 << 30;
  header.incompatible = kCompressionType | kDirty;
  header.compression = Compression::Zstd;
  header.backing = "base.raw";
  header.snapshots = 2;
  header.snapshots_offset = 5 << 12;
  header.set_text(ExtensionType::BackingFormat, "raw");
  header.extensions.push_back({.type = 0x12345678, .data = std::vector<std::byte>(13, std::byte{7})});
  header.unknown_fields.assign(16, std::byte{9});
  header.set_feature_names();
  const auto cluster = cluster_of(header);
  auto decoded = decode_header(cluster, kFileSize, "image");
  REQUIRE(decoded);
  CHECK(cluster_of(*decoded) == cluster);
  CHECK(decoded->text_of(ExtensionType::BackingFormat) == "raw");
  CHECK(decoded->backing == "base.raw");
  CHECK(decoded->find(ExtensionType{0x12345678})->data.size() == 13);
  CHECK(decoded->unknown_fields.size() == 16);
  CHECK(decoded->has(kDirty));
  decoded->clear_unknown_autoclear();
  CHECK(decoded->autoclear == kBitmaps);
}

TEST_CASE("version 2 has no features") {
  Header header = small_header();
  header.version = 2;
  auto decoded = decode_header(cluster_of(header), kFileSize, "image");
  REQUIRE(decoded);
  CHECK(decoded->version == 2);
  CHECK(decoded->layout.refcount_order == 4);
  CHECK(decoded->incompatible == 0);
}

TEST_CASE("fields out of range are refused by name") {
  const auto cluster = cluster_of(small_header());
  const auto with = [&](std::size_t at, unsigned width, uint64_t value) {
    auto changed = cluster;
    if (width == 4) big_endian::put32(changed.data() + at, static_cast<uint32_t>(value));
    if (width == 8) big_endian::put64(changed.data() + at, value);
    return refusal(changed);
  };
  CHECK(with(0, 4, 1).find("no qcow2") != std::string::npos);
  CHECK(with(4, 4, 4).find("version 4") != std::string::npos);
  CHECK(with(20, 4, 8).find("cluster_bits") != std::string::npos);
  CHECK(with(20, 4, 22).find("cluster_bits") != std::string::npos);
  CHECK(with(96, 4, 7).find("refcount_order") != std::string::npos);
  CHECK(with(100, 4, 8192).find("length of 8192") != std::string::npos);
  CHECK(with(32, 4, 2).find("LUKS") != std::string::npos);
  CHECK(with(36, 4, 0).find("L1 table has 0") != std::string::npos);
  CHECK(with(36, 4, 0xffffffff).find("L1 table") != std::string::npos);
  CHECK(with(40, 8, 4097).find("L1 table lies") != std::string::npos);
  CHECK(with(40, 8, uint64_t{1} << 62).find("beyond the file") != std::string::npos);
  CHECK(with(48, 8, 0).find("refcount table lies") != std::string::npos);
  CHECK(with(56, 4, 0).find("no refcount table") != std::string::npos);
  CHECK(with(56, 4, 0xffffffff).find("refcount table has") != std::string::npos);
  CHECK(with(60, 4, 0xffffffff).find("snapshots") != std::string::npos);
  CHECK(with(24, 8, ~uint64_t{0}).find("disk of") != std::string::npos);
  CHECK(with(8, 8, 8192).find("name") != std::string::npos);
  CHECK(with(72, 8, 1 << 4).find("extended") != std::string::npos);
}

TEST_CASE("unknown incompatible features are named as the image names them") {
  Header header = small_header();
  header.set_feature_names();
  auto* table = &header.extensions.front().data;
  table->resize(table->size() + 48);
  (*table)[table->size() - 47] = std::byte{9};
  std::memcpy(table->data() + table->size() - 46, "frobs", 5);
  header.incompatible = 1 << 9 | 1 << 10;
  const std::string text = refusal(cluster_of(header));
  CHECK(text.find("bit 9 (\"frobs\"), bit 10") != std::string::npos);
}

TEST_CASE("a header cut off anywhere is refused or whole") {
  Header header = small_header();
  header.backing = "base";
  header.set_text(ExtensionType::BackingFormat, "raw");
  auto cluster = *encode_header(header, "image");
  for (std::size_t length = 0; length < cluster.size(); ++length) {
    const auto cut = std::vector<std::byte>(cluster.begin(), cluster.begin() + static_cast<long>(length));
    auto decoded = decode_header(cut, kFileSize, "image");
    CHECK_FALSE((decoded && decoded->backing != "base"));
  }
}

TEST_CASE("a check may read a header whose tables lie nowhere, and nobody else") {
  Header header = small_header();
  header.l1_offset = 777;
  header.refcount_table_offset = uint64_t{1} << 40;
  const auto cluster = cluster_of(header);
  CHECK_FALSE(decode_header(cluster, kFileSize, "image"));
  const auto tolerated = decode_header(cluster, kFileSize, "image", {.tolerate_table_offsets = true});
  REQUIRE(tolerated);
  CHECK(tolerated->l1_offset == 777);
}

TEST_CASE("a header goes into a file and comes back, of clusters of every size") {
  auto reactor = std::move(*Reactor::create());
  const test::TempDir dir;
  for (unsigned bits = kSmallestClusterBits; bits <= kLargestClusterBits; ++bits) {
    Header header = small_header();
    header.layout.cluster_bits = bits;
    header.disk_size = 1 << 15;
    header.refcount_table_offset = uint64_t{1} << bits;
    header.l1_offset = uint64_t{3} << bits;
    header.backing = "base";
    const std::string path = dir.file(std::to_string(bits), uint64_t{4} << bits);
    auto file = FileNode::open(*reactor, {.path = path, .grows = true});
    REQUIRE(file);
    REQUIRE(reactor->wait(write_header(**file, header)));
    auto back = reactor->wait(read_header(**file));
    REQUIRE_MESSAGE(back, back.error()->message());
    CHECK(back->backing == "base");
    CHECK(back->l1_offset == header.l1_offset);
    REQUIRE(reactor->wait((*file)->resize(71)));
    CHECK_FALSE(reactor->wait(read_header(**file)));
    REQUIRE(reactor->wait((*file)->close()));
  }
}

TEST_CASE("entries of every kind, standard and extended") {
  Layout layout;
  CHECK(layout.kind({.entry = 0}, 0) == Kind::Unallocated);
  CHECK(layout.kind({.entry = 1}, 0) == Kind::Zero);
  CHECK(layout.kind({.entry = 0x10001}, 0) == Kind::ZeroAllocated);
  CHECK(layout.kind({.entry = kCopied | 0x10000}, 0) == Kind::Data);
  CHECK(layout.kind({.entry = kCompressed | 5}, 0) == Kind::Compressed);
  layout.extended_l2 = true;
  const L2Entry mixed{.entry = kCopied | 0x10000, .bitmap = uint64_t{1} << 33 | 1};
  CHECK(layout.kind(mixed, 0) == Kind::Data);
  CHECK(layout.kind(mixed, 1) == Kind::ZeroAllocated);
  CHECK(layout.kind(mixed, 2) == Kind::Unallocated);
  CHECK(layout.kind({.entry = 0x10000, .bitmap = uint64_t{1} << 32 | 1}, 0) == Kind::Invalid);
  CHECK(layout.kind({.entry = 0, .bitmap = 1}, 0) == Kind::Invalid);
}

TEST_CASE("compressed places come back at every cluster size") {
  for (unsigned bits = kSmallestClusterBits; bits <= kLargestClusterBits; ++bits) {
    const Layout layout{.cluster_bits = bits};
    for (const uint64_t offset : {uint64_t{512}, uint64_t{70001}, uint64_t{0x1234567}}) {
      const uint64_t bytes = layout.cluster_size() - 77;
      const auto entry = layout.compressed_entry(offset, bytes);
      REQUIRE(entry);
      const auto place = layout.compressed_place(*entry);
      CHECK(place.offset == offset);
      CHECK(place.bytes >= bytes);
      CHECK((place.offset + place.bytes) % kSector == 0);
    }
  }
}

TEST_CASE("counts of every width") {
  for (unsigned order = 0; order <= 6; ++order) {
    std::vector<std::byte> block(64);
    const Layout layout{.cluster_bits = 9, .refcount_order = order};
    const uint64_t most = layout.largest_refcount();
    for (uint64_t i = 0; i < 8; ++i) set_refcount(block.data(), order, i, i % 2 == 0 ? most : 0);
    for (uint64_t i = 0; i < 8; ++i) CHECK(refcount_at(block.data(), order, i) == (i % 2 == 0 ? most : 0));
    set_refcount(block.data(), order, 4, 1);
    CHECK(refcount_at(block.data(), order, 4) == 1);
    CHECK(refcount_at(block.data(), order, 6) == most);
  }
}
