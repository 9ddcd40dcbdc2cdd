// The file node where there is no space.
#include <doctest/doctest.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>

#include "block/disk.h"
#include "block/protocols/file_node.h"
#include "block/test_support/file_bench.h"

namespace spindle {
namespace {

using Bench = test::FileBench;
using test::skipped;

TEST_CASE("file: a file size limit is an ordinary request error, also with FUA") {
  Bench bench;
  auto node = bench.open({.path = bench.dir.file("image", 1 << 20)});
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{64 << 10, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  for (const bool fua : {false, true}) {
    auto result = bench.write(*node, 512 << 10, "x", fua);
    REQUIRE(!result.has_value());
    CHECK(result.error()->kind == ErrorKind::NoSpace);
    CHECK(result.error()->number == EFBIG);
    CHECK(result.error()->offset == 512 << 10);
  }
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(bench.write(*node, 512 << 10, "x").has_value());
}

TEST_CASE("file: a full file system is an ordinary request error, and what fits stays") {
  Bench bench;
  const std::string mount_point = bench.dir.file("full");
  REQUIRE(::mkdir(mount_point.c_str(), 0700) == 0);
  if (::mount("none", mount_point.c_str(), "tmpfs", 0, "size=1M") != 0) {
    return skipped(std::string("no full file system without the right to mount: ") + std::strerror(errno));
  }
  {
    const std::string path = mount_point + "/image";
    REQUIRE(test::run_command("truncate -s 4M " + path).status == 0);
    auto node = bench.open({.path = path});
    const std::string piece(128 << 10, 'f');
    Result<> result;
    uint64_t offset = 0;
    for (; result && offset < (4 << 20); offset += piece.size()) result = bench.write(*node, offset, piece);
    REQUIRE(!result.has_value());
    CHECK(result.error()->kind == ErrorKind::NoSpace);
    CHECK(offset >= (512 << 10));
    CHECK(bench.write(*node, 2 << 20, piece, true).error()->kind == ErrorKind::NoSpace);
    CHECK(bench.reactor->wait(node->write_zeroes(2 << 20, 1 << 20, {})).error()->kind == ErrorKind::NoSpace);
    CHECK(bench.read(*node, 0, piece.size()) == piece);
    CHECK(bench.reactor->wait(node->flush()).has_value());
    // Space given back can be used again.
    CHECK(bench.reactor->wait(node->write_zeroes(0, 512 << 10, {.unmap = true})).has_value());
    CHECK(bench.write(*node, 2 << 20, piece, true).has_value());
    CHECK(bench.reactor->wait(node->close()).has_value());
  }
  CHECK(::umount2(mount_point.c_str(), MNT_DETACH) == 0);  // older kernels let go of a ring's file late
}

// Somebody else on the file system gives space back at any moment of a FUA write that found none. A tmpfs has
// no sync that could fail.
TEST_CASE("file: a FUA write that found no space is no failed flush, whenever space comes back") {
  Bench bench;
  const std::string mount_point = bench.dir.file("full");
  REQUIRE(::mkdir(mount_point.c_str(), 0700) == 0);
  if (::mount("none", mount_point.c_str(), "tmpfs", 0, "size=1M") != 0) {
    return skipped(std::string("no full file system without the right to mount: ") + std::strerror(errno));
  }
  {
    const std::string path = mount_point + "/image";
    std::ofstream(path).close();
    REQUIRE(::truncate(path.c_str(), 4 << 20) == 0);
    Disk disk(bench.open({.path = path}), {.id = "disk0", .discard = true});
    const std::string ballast = mount_point + "/ballast";
    std::string piece(128 << 10, 'f');
    const iovec part{piece.data(), piece.size()};
    const Buffers buffers(std::span(&part, 1));
    const auto yield_for = [&bench](unsigned turns) -> Task<void> {
      while (turns-- != 0) co_await bench.reactor->yield();
    };
    unsigned refused = 0;
    for (unsigned turns = 0; turns < 8; ++turns) {
      std::ofstream(ballast) << std::string(2 << 20, 'b');  // as much as there is room for
      std::optional<Result<>> result;
      spawn(disk.write(1 << 20, buffers, {.fua = true}), [&](Result<> ended) { result = std::move(ended); });
      bench.reactor->wait(yield_for(turns));
      ::unlink(ballast.c_str());
      bench.reactor->run_until([&] { return result.has_value(); });
      if (!*result) {
        ++refused;
        CHECK_MESSAGE(result->error()->kind == ErrorKind::NoSpace, result->error()->message());
      }
      // The disk goes on.
      auto again = bench.reactor->wait(disk.write(1 << 20, buffers, {.fua = true}));
      CHECK_MESSAGE(again.has_value(), (again ? "" : again.error()->message()));
      CHECK(bench.reactor->wait(disk.discard(0, disk.size())).has_value());
      CHECK(bench.reactor->wait(disk.flush()).has_value());
    }
    CHECK(refused > 0);
    CHECK(bench.reactor->wait(disk.close()).has_value());
  }
  CHECK(::umount2(mount_point.c_str(), MNT_DETACH) == 0);
}

}  // namespace
}  // namespace spindle
