// The file node under O_DIRECT.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <cstring>
#include <filesystem>

#include "block/protocols/file_node.h"
#include "block/test_support/file_bench.h"
#include "block/test_support/model_check.h"

namespace spindle {
namespace {

using Bench = test::FileBench;
using test::ModelCheck;
using test::skipped;

TEST_CASE("file: random operations agree with a byte array, O_DIRECT, nothing aligned") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Bench bench;
    auto node = bench.open_direct(bench.dir.file("image", 300'001));
    if (!node) return;
    ModelCheck check(*bench.reactor, *node, {.seed = seed, .batches = 120, .resize = true});
    check.run();
    CHECK(bench.reactor->wait(node->close()).has_value());
    auto again = bench.open({.path = bench.dir.file("image")});
    check.check(*again);
  }
}

TEST_CASE("file: random operations agree with a byte array, O_DIRECT, sectors and aligned memory") {
  Bench bench;
  auto node = bench.open_direct(bench.dir.file("image", 1 << 20));
  if (!node) return;
  ModelCheck check(*bench.reactor, *node,
                   {.seed = 7, .granule = 512, .longest = 400'000, .odd_memory = false});
  check.run();
}

TEST_CASE("file: more unaligned direct requests than there are bounce buffers all end") {
  Bench bench;
  auto node = bench.open_direct(bench.dir.file("image", 64 << 20));
  if (!node) return;
  std::string text(300'001, 'b');
  const iovec part{text.data() + 1, 300'000};
  unsigned done = 0;
  constexpr unsigned kRequests = 3 * BouncePool::kBuffers;
  for (unsigned i = 0; i < kRequests; ++i) {
    spawn(node->write(i * 300'000 + 1, Buffers(std::span(&part, 1)), {}), [&](Result<> result) {
      CHECK(result.has_value());
      ++done;
    });
  }
  bench.reactor->run_until([&] { return done == kRequests; });
  CHECK(bench.read(*node, 0, 3) == std::string("\0bb", 3));
  CHECK(bench.read(*node, kRequests * 300'000 - 1, 3) == std::string("bb\0", 3));
}

TEST_CASE("file: a direct write never makes a file of an odd size longer") {
  Bench bench;
  const std::string path = bench.dir.file("image", 10'000);
  auto node = bench.open_direct(path);
  if (!node) return;
  CHECK(bench.write(*node, 4000, std::string(6000, 'y'), true).has_value());
  CHECK(std::filesystem::file_size(path) == 10'000);
  CHECK(bench.read(*node, 0, 10'000) == std::string(4000, '\0') + std::string(6000, 'y'));
}

// Linux reads and writes back whole pages (or larger) where the last bytes of the file go through the page
// cache; a direct write to the same page at the same time is what it must not meet.
TEST_CASE("file: direct writes beside the last, partial block of the file are not undone by it") {
  Bench bench;
  constexpr uint64_t kPage = 64 << 10;
  constexpr uint64_t kTail = kPage + 3 * 512;
  const std::string path = bench.dir.file("image", kTail + 100);
  auto node = bench.open_direct(path);
  if (!node) return;
  if (node->facts().request_alignment != 512) return skipped("no direct requests smaller than a page here");
  CHECK(bench.write(*node, 0, std::string(kTail + 100, 'i')).has_value());
  std::string memory(3 * 4096, '\0');
  char* const aligned = memory.data() + (4096 - reinterpret_cast<uintptr_t>(memory.data()) % 4096) % 4096;
  std::string expected(kTail + 100 - kPage, 'i');
  for (int round = 0; round < 200; ++round) {
    // A direct write and one to the last bytes, in both orders, one zeroing now and then.
    const auto fill = static_cast<char>('a' + round % 26);
    const uint64_t block = static_cast<uint64_t>(round / 2) % 3 * 512;
    std::memset(aligned, fill, 512);
    std::memset(aligned + 4096, round % 5 == 0 ? 0 : fill, 100);
    const iovec whole{aligned, 512};
    const iovec last{aligned + 4096, 100};
    int done = 0;
    const auto ended = [&](Result<> result) {
      CHECK_MESSAGE(result.has_value(), (result ? "" : result.error()->message()));
      ++done;
    };
    for (int step = 0; step < 2; ++step) {
      if ((step + round) % 2 == 0) {
        spawn(node->write(kPage + block, Buffers(std::span(&whole, 1)), {.fua = round % 7 == 0}), ended);
      } else if (round % 5 == 0) {
        spawn(node->write_zeroes(kTail, 100, {}), ended);
      } else {
        spawn(node->write(kTail, Buffers(std::span(&last, 1)), {.fua = round % 3 == 0}), ended);
      }
    }
    bench.reactor->run_until([&] { return done == 2; });
    std::memcpy(expected.data() + block, aligned, 512);
    std::memcpy(expected.data() + kTail - kPage, aligned + 4096, 100);
    auto flushed = bench.reactor->wait(node->flush());
    REQUIRE_MESSAGE(flushed.has_value(), (flushed ? "" : flushed.error()->message()));
    // What the medium holds, and no page of it stays to take part in the next round.
    REQUIRE(::posix_fadvise(node->fd(), 0, 0, POSIX_FADV_DONTNEED) == 0);
    REQUIRE(bench.read(*node, kPage, expected.size()) == expected);
  }
}

}  // namespace
}  // namespace spindle
