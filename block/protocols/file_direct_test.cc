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

}  // namespace
}  // namespace spindle
