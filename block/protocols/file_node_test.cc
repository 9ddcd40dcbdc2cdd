#include "block/protocols/file_node.h"

#include <doctest/doctest.h>

#include <fstream>

#include "block/cache_mode.h"
#include "block/test_support/file_bench.h"
#include "block/test_support/model_check.h"

namespace spindle {
namespace {

using test::ModelCheck;
using test::skipped;
using test::TempDir;

using Bench = test::FileBench;

TEST_CASE("file: random operations agree with a byte array, buffered") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Bench bench;
    auto node = bench.open({.path = bench.dir.file("image", 300'001)});
    ModelCheck check(*bench.reactor, *node, {.seed = seed, .resize = true});
    check.run();
    CHECK(bench.reactor->wait(node->close()).has_value());
    auto again = bench.open({.path = bench.dir.file("image"), .read_only = true});
    check.check(*again);
  }
}

TEST_CASE("file: under tmpfs too, where zeroing in place does not exist") {
  Bench bench;
  TempDir shm("/dev/shm");
  if (!shm.ok()) return skipped("no tmpfs at /dev/shm");
  auto node = bench.open({.path = shm.file("image", 300'000)});
  ModelCheck(*bench.reactor, *node, {.seed = 3, .resize = true}).run();
}

TEST_CASE("file: no descriptor of the image holds O_SYNC or O_DSYNC, in any cache mode") {
  for (const CacheMode mode : {CacheMode::Writeback, CacheMode::None, CacheMode::Writethrough,
                               CacheMode::Directsync, CacheMode::Unsafe}) {
    Bench bench;
    const std::string path = bench.dir.file("image", 4096 + 100);
    auto node = FileNode::open(*bench.reactor,
                               {.path = path, .direct = is_direct(mode), .never_flush = never_flushes(mode)});
    if (!node) {
      skipped("O_DIRECT: " + node.error()->message());
      continue;
    }
    unsigned seen = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      if (std::filesystem::read_symlink(entry.path(), error) != path) continue;
      std::ifstream info("/proc/self/fdinfo/" + entry.path().filename().string());
      std::string key;
      while (info >> key && key != "flags:") {
      }
      unsigned flags = 0;
      info >> std::oct >> flags;
      CHECK((flags & O_DSYNC) == 0);
      CHECK((flags & (O_SYNC & ~O_DSYNC)) == 0);
      CHECK((flags & O_CLOEXEC) != 0);
      ++seen;
    }
    // The image twice (FUA has its own), its witness, its lock, and with O_DIRECT one for the partial block
    // at the end.
    CHECK(seen == (is_direct(mode) ? 5 : 4));
  }
}

TEST_CASE("file: what is no image is refused with a reason") {
  Bench bench;
  const auto refused = [&](const std::string& path, ErrorKind kind, const char* reason) {
    auto node = FileNode::open(*bench.reactor, {.path = path});
    REQUIRE(!node.has_value());
    CHECK(node.error()->kind == kind);
    CHECK_MESSAGE(node.error()->message().find(reason) != std::string::npos, node.error()->message());
  };
  refused(bench.dir.path(), ErrorKind::Invalid, "directory");
  refused("/dev/null", ErrorKind::Invalid, "character device");
  refused(bench.dir.file("missing"), ErrorKind::NotFound, "spindle img create");
  const std::string fifo = bench.dir.file("fifo");
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  refused(fifo, ErrorKind::Invalid, "FIFO");  // and does not wait for a writer
}

TEST_CASE("file: ranges outside are answered, whatever they are") {
  Bench bench;
  auto node = bench.open({.path = bench.dir.file("image", 1000)});
  CHECK(bench.write(*node, 999, "ab").error()->kind == ErrorKind::Invalid);
  CHECK(bench.write(*node, UINT64_MAX, "ab").error()->kind == ErrorKind::Invalid);
  auto& reactor = *bench.reactor;
  CHECK(reactor.wait(node->write_zeroes(1, UINT64_MAX, {})).error()->kind == ErrorKind::Invalid);
  CHECK(reactor.wait(node->discard(UINT64_MAX, UINT64_MAX)).error()->kind == ErrorKind::Invalid);
  CHECK(reactor.wait(node->map(1001, 0)).error()->kind == ErrorKind::Invalid);
  CHECK(reactor.wait(node->resize(UINT64_MAX)).error()->kind == ErrorKind::NoSpace);
  CHECK(bench.write(*node, 1000, "").has_value());
}

TEST_CASE("file: a file cut under us reads as zeroes") {
  for (const bool direct : {false, true}) {
    Bench bench;
    const std::string path = bench.dir.file("image", 64 << 10);
    auto node = direct ? bench.open_direct(path) : bench.open({.path = path});
    if (!node) continue;
    CHECK(bench.write(*node, 0, std::string(64 << 10, 'x')).has_value());
    REQUIRE(::truncate(path.c_str(), 5000) == 0);
    const std::string text = bench.read(*node, 0, 64 << 10);
    CHECK(text == std::string(5000, 'x') + std::string((64 << 10) - 5000, '\0'));
    CHECK(bench.read(*node, 32 << 10, 4096) == std::string(4096, '\0'));
  }
}

TEST_CASE("file: more parts than one call takes, to the host and back") {
  Bench bench;
  auto node = bench.open({.path = bench.dir.file("image", 1 << 20)});
  std::string out(5000, '\0');
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(i * 7);
  std::string in(out.size(), '?');
  std::vector<iovec> out_parts, in_parts;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out_parts.push_back({&out[i], 1});
    in_parts.push_back({&in[i], 1});
  }
  CHECK(bench.reactor->wait(node->write(3, Buffers(out_parts), {})).has_value());
  CHECK(bench.reactor->wait(node->read(3, Buffers(in_parts))).has_value());
  CHECK(in == out);
  CHECK(node->protocol_counters()->writes == 5);
  CHECK(node->protocol_counters()->reads == 5);
}

TEST_CASE("file: counters count what the host was asked, exactly") {
  Bench bench;
  auto node = bench.open({.path = bench.dir.file("image", 1 << 20)});
  CHECK(bench.write(*node, 0, "data").has_value());
  CHECK(bench.write(*node, 4096, "data", true).has_value());
  bench.read(*node, 0, 4);
  CHECK(bench.reactor->wait(node->flush()).has_value());
  CHECK(bench.reactor->wait(node->write_zeroes(0, 4096, {.unmap = true, .fua = true})).has_value());
  CHECK(bench.reactor->wait(node->discard(1, 4096)).has_value());  // holds no whole granule
  const auto& counters = *node->protocol_counters();
  CHECK(counters.writes == 2);
  CHECK(counters.reads == 1);
  CHECK(counters.fdatasyncs == 2);
  CHECK(counters.fallocates == 1);
}

TEST_CASE("file: cache=unsafe asks the host for no flush, FUA included") {
  Bench bench;
  auto node = bench.open({.path = bench.dir.file("image", 1 << 20), .never_flush = true});
  CHECK(bench.write(*node, 0, "data", true).has_value());
  CHECK(bench.reactor->wait(node->flush()).has_value());
  CHECK(bench.reactor->wait(node->write_zeroes(0, 4096, {.fua = true})).has_value());
  CHECK(node->protocol_counters()->fdatasyncs == 0);
}

TEST_CASE("file: read-only refuses every change") {
  Bench bench;
  auto node = bench.open({.path = bench.dir.file("image", 4096), .read_only = true});
  CHECK(node->facts().read_only);
  CHECK(bench.write(*node, 0, "x").error()->kind == ErrorKind::ReadOnly);
  CHECK(bench.reactor->wait(node->write_zeroes(0, 512, {})).error()->kind == ErrorKind::ReadOnly);
  CHECK(bench.reactor->wait(node->discard(0, 4096)).error()->kind == ErrorKind::ReadOnly);
  CHECK(bench.reactor->wait(node->resize(8192)).error()->kind == ErrorKind::ReadOnly);
}

TEST_CASE("file: after close everything fails, nothing crashes") {
  Bench bench;
  auto node = bench.open({.path = bench.dir.file("image", 4096)});
  CHECK(bench.reactor->wait(node->close()).has_value());
  CHECK(bench.write(*node, 0, "x").error()->number == EBADF);
  CHECK(bench.reactor->wait(node->flush()).error()->number == EBADF);
  CHECK(bench.reactor->wait(node->resize(0)).error()->number == EBADF);
}

TEST_CASE("file: a write beyond the size that a growth is about to reach waits for it") {
  Bench bench;
  auto node = bench.open({.path = bench.dir.file("image", 4096)});
  std::string text(4096, 'w');
  const iovec part{text.data(), text.size()};
  std::vector<std::string> order;
  // Started together: the write below the old size is in flight when the growth begins, the one above comes
  // after it.
  spawn(node->write(0, Buffers(std::span(&part, 1)), {}), [&](Result<> result) {
    CHECK(result.has_value());
    order.push_back("below");
  });
  spawn(node->resize(8192), [&](Result<> result) {
    CHECK(result.has_value());
    order.push_back("growth");
  });
  spawn(node->write(4096, Buffers(std::span(&part, 1)), {}), [&](Result<> result) {
    CHECK(result.has_value());
    order.push_back("above");
  });
  bench.reactor->run_until([&] { return order.size() == 3; });
  CHECK(std::find(order.begin(), order.end(), "above") > std::find(order.begin(), order.end(), "growth"));
  CHECK(bench.read(*node, 4096, 4096) == text);
}

TEST_CASE("file: a cut waits for the writes behind it, which do not make the file longer again") {
  Bench bench;
  const std::string path = bench.dir.file("image", 1 << 20);
  auto node = bench.open({.path = path});
  std::string text(512 << 10, 'w');
  const iovec part{text.data(), text.size()};
  int done = 0;
  spawn(node->write(512 << 10, Buffers(std::span(&part, 1)), {.fua = true}), [&](Result<> result) {
    CHECK(result.has_value());
    ++done;
  });
  spawn(node->resize(4096), [&](Result<> result) {
    CHECK(result.has_value());
    ++done;
  });
  // Comes after the cut, whose size it must respect.
  spawn(node->write(512 << 10, Buffers(std::span(&part, 1)), {}), [&](Result<> result) {
    CHECK(result.error()->kind == ErrorKind::Invalid);
    ++done;
  });
  bench.reactor->run_until([&] { return done == 3; });
  CHECK(std::filesystem::file_size(path) == 4096);
}

TEST_CASE("file: a block device reads, writes, zeroes and keeps its size") {
  Bench bench;
  const std::string image = bench.dir.file("image", 8 << 20);
  const auto loop = test::run_command("losetup --show -f " + image);
  if (loop.status != 0) return skipped("no loop device: " + loop.output.substr(0, loop.output.find('\n')));
  const std::string device = loop.output.substr(0, loop.output.find('\n'));
  for (const bool direct : {false, true}) {
    auto node = FileNode::open(*bench.reactor, {.path = device, .direct = direct});
    REQUIRE_MESSAGE(node.has_value(), (node ? "" : node.error()->message()));
    CHECK((*node)->size() == 8 << 20);
    ModelCheck(*bench.reactor, **node, {.seed = 11, .batches = 60}).run();
    CHECK(bench.reactor->wait((*node)->resize(8 << 20)).has_value());
    CHECK(bench.reactor->wait((*node)->resize(9 << 20)).error()->kind == ErrorKind::NotSupported);
    CHECK(bench.reactor->wait((*node)->close()).has_value());
  }
  CHECK(test::run_command("losetup -d " + device).status == 0);
}

TEST_CASE("file: holes are mapped as zeroes, data where it lies in the file") {
  Bench bench;
  auto node = bench.open({.path = bench.dir.file("image", 4 << 20)});
  CHECK(bench.write(*node, 1 << 20, std::string(1 << 20, 'd')).has_value());
  auto hole = bench.reactor->wait(node->map(0, 4 << 20));
  REQUIRE(hole.has_value());
  if (hole->data) return skipped("the file system of the temporary directory does not tell holes");
  CHECK(hole->zero);
  CHECK(hole->length == 1 << 20);
  auto data = bench.reactor->wait(node->map((1 << 20) + 4096, 4 << 19));
  REQUIRE(data.has_value());
  CHECK(data->data);
  CHECK(data->file_offset == (1 << 20) + 4096);
  CHECK(data->length == (1 << 20) - 4096);
  auto end = bench.reactor->wait(node->map(3 << 20, 1 << 20));
  REQUIRE(end.has_value());
  CHECK(end->zero);
  CHECK(end->length == 1 << 20);
}

}  // namespace
}  // namespace spindle
