// Nothing that is open read-only changes, whichever node or disk is asked.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include "block/disk.h"
#include "block/filters/fault_node.h"
#include "block/filters/null_node.h"
#include "block/filters/volatile_node.h"
#include "block/test_support/file_bench.h"

namespace spindle {
namespace {

using Bench = test::FileBench;

bool same(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

// `target` is a Node or a Disk.
void refuses_all(Bench& bench, auto& target) {
  std::string text(4096, 'x');
  const iovec parts[] = {{text.data(), text.size()}, {text.data(), 5}, {text.data(), 0}};
  const auto refused = [&](Task<Result<>> task) {
    auto result = bench.reactor->wait(std::move(task));
    REQUIRE(!result.has_value());
    CHECK_MESSAGE(result.error()->kind == ErrorKind::ReadOnly, result.error()->message());
  };
  for (const iovec& part : parts) {
    for (const bool fua : {false, true}) {
      const Buffers buffers(std::span(&part, 1));
      refused(target.write(0, buffers, {.fua = fua}));
      refused(target.write(9990, Buffers(std::span(&parts[1], 1)), {.fua = fua}));
      for (const bool unmap : {false, true}) {
        refused(target.write_zeroes(0, part.iov_len, {.unmap = unmap, .fua = fua}));
        refused(target.write_zeroes(9990, 5, {.unmap = unmap, .no_fallback = true, .fua = fua}));
      }
    }
    refused(target.discard(0, part.iov_len));
  }
  refused(target.discard(0, 10'000));
  if constexpr (requires { target.resize(0); }) {
    refused(target.resize(20'000));
    refused(target.resize(10'000));
    refused(target.resize(0));
  }
  CHECK(bench.reactor->wait(target.flush()).has_value());
}

TEST_CASE("read-only: every node and the disk refuse every change, and the file keeps bytes and times") {
  for (const bool direct : {false, true}) {
    Bench bench;
    const std::string path = bench.dir.file("image", 10'000);
    {
      auto node = bench.open({.path = path});
      CHECK(bench.write(*node, 0, std::string(10'000, 'o'), true).has_value());
    }
    struct stat before {};
    REQUIRE(::stat(path.c_str(), &before) == 0);
    auto opened = FileNode::open(*bench.reactor, {.path = path, .read_only = true, .direct = direct});
    if (!opened) {
      test::skipped("O_DIRECT: " + opened.error()->message());
      continue;
    }
    auto file = *opened;
    auto fault = std::make_shared<FaultNode>(file, std::vector<FaultRule>{});
    auto volatile_node = std::make_shared<VolatileNode>(fault, VolatileNode::Options{});
    auto tiny = std::make_shared<VolatileNode>(fault, VolatileNode::Options{.max_bytes = 0});
    refuses_all(bench, *file);
    refuses_all(bench, *fault);
    refuses_all(bench, *volatile_node);
    refuses_all(bench, *tiny);
    for (const bool discard : {false, true}) {
      for (const CacheMode cache : {CacheMode::Writeback, CacheMode::Writethrough, CacheMode::Unsafe}) {
        Disk disk(volatile_node, {.id = "disk0", .cache = cache, .discard = discard});
        CHECK(disk.read_only());
        refuses_all(bench, disk);
        CHECK(bench.reactor->wait(disk.set_write_cache(false)).has_value());
        CHECK(!volatile_node->sequencer().failure());
      }
    }
    CHECK(bench.reactor->wait(volatile_node->close()).has_value());
    struct stat after {};
    REQUIRE(::stat(path.c_str(), &after) == 0);
    CHECK(same(after.st_mtim, before.st_mtim));
    CHECK(same(after.st_ctim, before.st_ctim));
    CHECK(after.st_size == before.st_size);
    CHECK(after.st_blocks == before.st_blocks);
    CHECK(bench.read(*bench.open({.path = path, .read_only = true}), 0, 10'000) == std::string(10'000, 'o'));
  }
}

TEST_CASE("read-only: the null node too, and a disk that is read-only over a node that is not") {
  Bench bench;
  NullNode null(*bench.reactor, {.size = 10'000, .read_only = true});
  refuses_all(bench, null);
  const std::string path = bench.dir.file("image", 10'000);
  Disk disk(bench.open({.path = path}), {.id = "disk0", .read_only = true, .discard = true});
  refuses_all(bench, disk);
}

}  // namespace
}  // namespace spindle
