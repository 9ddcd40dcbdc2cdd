#include "formats/qcow2/codec.h"

#include <doctest/doctest.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "block/big_endian.h"
#include "block/test_support/environment.h"

namespace spindle::qcow2 {
namespace {

using Bytes = std::vector<std::byte>;

constexpr Compression kTypes[] = {Compression::Zlib, Compression::Zstd};

// Bytes of `distinct` values, so that they can be compressed the better the fewer there are.
Bytes bytes_of(std::size_t size, unsigned distinct, unsigned seed = 1) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % distinct);
  return bytes;
}

Bytes packed(Compression type, std::span<const std::byte> cluster) {
  Bytes room(2 * cluster.size() + 1024);
  const auto used = compress(type, cluster, room);
  REQUIRE(used);
  REQUIRE(used->has_value());
  room.resize(**used);
  room.shrink_to_fit();  // so that a sanitizer sees a byte too far
  return room;
}

ErrorKind refusal(Compression type, std::span<const std::byte> stream, std::size_t size) {
  Bytes cluster(size);
  const auto result = decompress(type, stream, cluster);
  REQUIRE_FALSE(result);
  CHECK_FALSE(result.error()->detail.empty());
  return result.error()->kind;
}

}  // namespace

TEST_CASE("codec: what was compressed comes back, of every size of a cluster") {
  for (const Compression type : kTypes) {
    for (unsigned bits = kSmallestClusterBits; bits <= kLargestClusterBits; ++bits) {
      for (const unsigned distinct : {1u, 4u, 256u}) {
        const Bytes cluster = bytes_of(std::size_t{1} << bits, distinct, bits);
        Bytes stream = packed(type, cluster), back(cluster.size());
        CHECK(decompress(type, stream, back));
        CHECK(back == cluster);
        stream.resize(stream.size() + 511, std::byte{0xff});  // what lies behind it in its last sector
        std::ranges::fill(back, std::byte{});
        CHECK(decompress(type, stream, back));
        CHECK(back == cluster);
      }
    }
  }
}

TEST_CASE("codec: room that does not suffice is no error, and is not overrun") {
  for (const Compression type : kTypes) {
    for (const unsigned distinct : {1u, 4u, 256u}) {
      const Bytes cluster = bytes_of(65536, distinct);
      const std::size_t needed = packed(type, cluster).size();
      for (const std::size_t size : {std::size_t{0}, std::size_t{1}, needed / 2, needed - 1}) {
        Bytes room(size);
        const auto used = compress(type, cluster, room);
        REQUIRE(used);
        CHECK_FALSE(used->has_value());
      }
      Bytes room(needed + 64);  // zstd wants some more than it uses in the end
      CHECK(compress(type, cluster, room)->has_value());
    }
    Bytes large(std::size_t{4} << 20), room(16);
    CHECK(compress(type, large, room).error()->kind == ErrorKind::Invalid);
    CHECK(decompress(type, room, large).error()->kind == ErrorKind::Invalid);
  }
}

TEST_CASE("codec: streams that are cut off, empty, or make too little are corrupt") {
  for (const Compression type : kTypes) {
    const Bytes cluster = bytes_of(4096, 8), stream = packed(type, cluster);
    CHECK(refusal(type, {}, 4096) == ErrorKind::Corrupt);
    CHECK(refusal(type, stream, 4097) == ErrorKind::Corrupt);
    CHECK(refusal(type, stream, 1 << 21) == ErrorKind::Corrupt);
    for (std::size_t length = 1; length + 8 < stream.size(); length += 7) {
      const Bytes cut(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(length));
      CHECK(refusal(type, cut, 4096) == ErrorKind::Corrupt);
    }
    CHECK(refusal(type, bytes_of(4096, 256, 7), 4096) == ErrorKind::Corrupt);
  }
  CHECK(refusal(Compression::Zstd, packed(Compression::Zlib, bytes_of(4096, 8)), 4096) == ErrorKind::Corrupt);
  CHECK(refusal(Compression::Zstd, packed(Compression::Zstd, bytes_of(8192, 8)), 4096) == ErrorKind::Corrupt);
}

TEST_CASE("codec: garbage and broken streams never overrun a span") {
  std::mt19937 random(20);
  for (const Compression type : kTypes) {
    for (int round = 0; round < 3000; ++round) {
      const std::size_t size = std::size_t{512} << random() % 6;
      const Bytes cluster = bytes_of(size, 1 + random() % 256, random());
      Bytes stream = packed(type, cluster);
      for (unsigned changes = 1 + random() % 4; changes != 0; --changes)
        stream[random() % stream.size()] = static_cast<std::byte>(random());
      if (random() % 2 == 0) stream.resize(1 + random() % stream.size());
      stream.shrink_to_fit();
      Bytes back(std::size_t{512} << random() % 6);
      const auto result = decompress(type, stream, back);  // either is right: what counts is that it ends
      if (!result) CHECK(result.error()->kind == ErrorKind::Corrupt);
    }
  }
}

TEST_CASE("codec: windows and frames that others may write") {
  // deflate with the largest window, of text that repeats from further back than 4 KiB.
  Bytes cluster = bytes_of(32768, 256);
  std::copy(cluster.begin(), cluster.begin() + 12768, cluster.begin() + 20000);
  Bytes stream(65536), back(cluster.size());
  z_stream deflating{};
  REQUIRE(deflateInit2(&deflating, 9, Z_DEFLATED, -15, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  deflating.next_in = reinterpret_cast<Bytef*>(cluster.data());
  deflating.avail_in = static_cast<uInt>(cluster.size());
  deflating.next_out = reinterpret_cast<Bytef*>(stream.data());
  deflating.avail_out = static_cast<uInt>(stream.size());
  REQUIRE(deflate(&deflating, Z_FINISH) == Z_STREAM_END);
  stream.resize(stream.size() - deflating.avail_out);
  deflateEnd(&deflating);
  CHECK(stream.size() < 24000);  // so it did refer back that far
  CHECK(decompress(Compression::Zlib, stream, back));
  CHECK(back == cluster);

  // Several frames, one of them to be skipped.
  const std::span<const std::byte> whole(cluster);
  Bytes frames = packed(Compression::Zstd, whole.first(10000));
  const uint8_t skipped[] = {0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 'h', 'i'};
  for (const uint8_t byte : skipped) frames.push_back(static_cast<std::byte>(byte));
  const Bytes rest = packed(Compression::Zstd, whole.subspan(10000));
  frames.insert(frames.end(), rest.begin(), rest.end());
  std::ranges::fill(back, std::byte{});
  CHECK(decompress(Compression::Zstd, frames, back));
  CHECK(back == cluster);
}

TEST_CASE("codec: several threads at once") {
  std::vector<std::thread> threads;
  std::vector<int> good(4);
  for (unsigned i = 0; i < good.size(); ++i) {
    threads.emplace_back([&good, i] {
      for (unsigned round = 0; round < 50; ++round) {
        const Compression type = kTypes[(i + round) % 2];
        const Bytes cluster = bytes_of(65536, 16, i * 100 + round);
        Bytes room(131072), back(cluster.size());
        const auto used = compress(type, cluster, room);
        if (used && *used && decompress(type, std::span(room).first(**used), back) && back == cluster)
          ++good[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good == std::vector<int>(4, 50));
}

TEST_CASE("codec: clusters that qemu-img has compressed, and those it is given") {
  using namespace big_endian;
  if (!test::have_program("qemu-img")) return test::skipped("there is no qemu-img; install qemu-utils");
  const test::TempDir dir;
  const std::string raw = dir.file("raw"), image = dir.file("image");
  const Bytes content = bytes_of(1 << 20, 5);
  std::ofstream(raw, std::ios::binary)
      .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  for (const Compression type : kTypes) {
    const std::string name = type == Compression::Zstd ? "zstd" : "zlib";
    const auto made =
        test::run_command("timeout 60 qemu-img convert -c -f raw -O qcow2 -o compression_type=" + name +
                          " '" + raw + "' '" + image + "'");
    REQUIRE_MESSAGE(made.status == 0, made.output);
    std::ifstream in(image, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    Bytes file(text.size());
    std::transform(text.begin(), text.end(), file.begin(), [](char c) { return static_cast<std::byte>(c); });
    const auto header = decode_header(std::span(file).first(65536), file.size(), image);
    REQUIRE(header);
    const uint64_t l2 = get64(file.data() + header->l1_offset) & kOffsetMask;
    std::fstream out(image, std::ios::binary | std::ios::in | std::ios::out);
    for (std::size_t cluster = 0; cluster < 16; ++cluster) {
      const uint64_t entry = get64(file.data() + l2 + cluster * 8);
      REQUIRE((entry & kCompressed) != 0);
      const auto place = header->layout.compressed_place(entry);
      const std::span<const std::byte> room =
          std::span(file).subspan(place.offset, std::min(place.bytes, file.size() - place.offset));
      Bytes back(65536);
      CHECK(decompress(type, room, back));
      const auto wanted = std::span(content).subspan(cluster * 65536, 65536);
      CHECK(std::ranges::equal(back, wanted));
      // Ours in its place, where it fits: of another cluster, to be seen.
      Bytes ours(room.size());
      const auto used = compress(type, std::span(content).subspan((15 - cluster) * 65536, 65536), ours);
      REQUIRE(used);
      if (!*used) continue;
      out.seekp(static_cast<std::streamoff>(place.offset));
      out.write(reinterpret_cast<const char*>(ours.data()), static_cast<std::streamsize>(**used));
      out.flush();
      const std::string back_file = dir.file("back");
      REQUIRE(test::run_command("timeout 60 qemu-img dd -f qcow2 -O raw bs=64k count=1 skip=" +
                                std::to_string(cluster) + " 'if=" + image + "' 'of=" + back_file + "'")
                  .status == 0);
      std::ifstream read_back(back_file, std::ios::binary);
      const std::string seen{std::istreambuf_iterator<char>(read_back), {}};
      CHECK(std::equal(seen.begin(), seen.end(),
                       reinterpret_cast<const char*>(content.data()) + (15 - cluster) * 65536));
      // What lay behind belongs to the neighbour, so the old bytes go back.
      out.seekp(static_cast<std::streamoff>(place.offset));
      out.write(reinterpret_cast<const char*>(room.data()), static_cast<std::streamsize>(room.size()));
      out.flush();
    }
  }
}

}  // namespace spindle::qcow2
