// The file node where there is no space.
#include <doctest/doctest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <optional>
#include <random>

#include "block/disk.h"
#include "block/filters/fault_node.h"
#include "block/protocols/file_node.h"
#include "block/test_support/file_bench.h"

namespace spindle {
namespace {

using Bench = test::FileBench;
using test::skipped;

// A file system of a few megabytes, until the end of the test.
class SmallFileSystem {
 public:
  /// `megabytes` of a tmpfs; an ext4 has 16, with its journal.
  SmallFileSystem(const test::TempDir& dir, const std::string& type, unsigned megabytes = 8)
      : at_(dir.file("mounted-" + type)) {
    std::string command = "mkdir " + at_ + " && ";
    if (type == "ext4") {
      const std::string image = dir.file("file-system", 16 << 20);
      command += "mkfs.ext4 -q -F -J size=4 " + image + " && mount -o loop " + image + " " + at_;
    } else {
      command += "mount -t tmpfs -o size=" + std::to_string(megabytes) + "M none " + at_;
    }
    const auto done = test::run_command(command);
    mounted_ = done.status == 0;
    if (!mounted_) skipped("no small " + type + ": " + done.output.substr(0, done.output.find('\n')));
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;
  // Older kernels let go of a ring's file late.
  ~SmallFileSystem() {
    if (mounted_) CHECK(::umount2(at_.c_str(), MNT_DETACH) == 0);
  }
  bool mounted() const { return mounted_; }
  std::string file(const std::string& name) const { return at_ + "/" + name; }

 private:
  std::string at_;
  bool mounted_ = false;
};

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
  const SmallFileSystem small(bench.dir, "tmpfs", 1);
  if (!small.mounted()) return;
  const std::string path = small.file("image");
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

// Somebody else on the file system gives space back at any moment of a FUA write that found none. A tmpfs has
// no sync that could fail.
TEST_CASE("file: a FUA write that found no space is no failed flush, whenever space comes back") {
  Bench bench;
  const SmallFileSystem small(bench.dir, "tmpfs", 1);
  if (!small.mounted()) return;
  const std::string path = small.file("image");
  std::ofstream(path).close();
  REQUIRE(::truncate(path.c_str(), 4 << 20) == 0);
  Disk disk(bench.open({.path = path}), {.id = "disk0", .discard = true});
  const std::string ballast = small.file("ballast");
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

// Random requests to slots of a disk, one at a time in each. A byte may be what the last request that
// succeeded made it, or what one that failed since would have.
class SlotRun {
 public:
  static constexpr uint64_t kSlots = 6;
  static constexpr uint64_t kSlot = (512 << 10) + 1536;

  explicit SlotRun(Disk& disk) : disk_(disk) {
    for (auto& slot : slots_) slot.allowed.assign(kSlot, {});
    for (auto& slot : slots_) {
      for (auto& bytes : slot.allowed) bytes = std::string(1, '\0');
    }
  }

  Task<void> work(uint64_t number, uint64_t seed, int operations) {
    std::mt19937_64 random(seed * kSlots + number);
    Slot& slot = slots_[number];
    for (int i = 0; i < operations; ++i) {
      const uint64_t length = 1 + random() % (random() % 2 ? 3000 : kSlot);
      const uint64_t from = random() % (kSlot - length + 1);
      const auto kind = random() % 8;
      if (kind == 0) {
        auto flushed = co_await disk_.flush();
        CHECK_MESSAGE(flushed.has_value(), (flushed ? "" : flushed.error()->message()));
        continue;
      }
      const char fill = kind < 3 ? '\0' : static_cast<char>('a' + random() % 26);
      std::string text(length, fill);
      const iovec part{text.data(), length};
      const uint64_t at = number * kSlot + from;
      Result<> result;
      if (kind < 3) {
        result = co_await disk_.write_zeroes(at, length, {.unmap = kind == 1, .fua = random() % 2 == 0});
      } else {
        result = co_await disk_.write(at, Buffers(std::span(&part, 1)), {.fua = random() % 2 == 0});
      }
      for (uint64_t k = from; k < from + length; ++k) {
        if (result) slot.allowed[k].clear();
        if (slot.allowed[k].find(fill) == std::string::npos) slot.allowed[k] += fill;
      }
      if (result) continue;
      ++refused_;
      CHECK_MESSAGE(result.error()->kind == ErrorKind::NoSpace, result.error()->message());
    }
  }

  void compare(const std::string& all) const {
    for (uint64_t number = 0; number < kSlots; ++number) {
      for (uint64_t k = 0; k < kSlot; ++k) {
        if (slots_[number].allowed[k].find(all[number * kSlot + k]) != std::string::npos) continue;
        FAIL_CHECK("byte " << k << " of slot " << number << " is none that was written there");
        return;
      }
    }
  }
  unsigned refused() const { return refused_; }

 private:
  struct Slot {
    std::vector<std::string> allowed;
  };
  Disk& disk_;
  std::array<Slot, kSlots> slots_;
  unsigned refused_ = 0;
};

TEST_CASE("D6: a full file system fails requests, loses nothing acknowledged, and the disk goes on") {
  for (const std::string type : {"tmpfs", "ext4"}) {
    for (const bool direct : {false, true}) {
      if (direct && type == "tmpfs") continue;
      Bench bench;
      const SmallFileSystem small(bench.dir, type);
      if (!small.mounted()) continue;
      const std::string path = small.file("image");
      constexpr uint64_t kSize = SlotRun::kSlots * SlotRun::kSlot;
      std::ofstream(path).close();
      REQUIRE(::truncate(path.c_str(), kSize) == 0);
      auto node = bench.open({.path = path, .direct = direct});
      Disk disk(node, {.id = "disk0", .discard = true});
      SlotRun run(disk);
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        // As much as there is room for; the disk holds a part of what is left from the round before.
        std::ofstream(small.file("ballast")) << std::string(16 << 20, 'b');
        uint64_t live = SlotRun::kSlots;
        for (uint64_t slot = 0; slot < SlotRun::kSlots; ++slot) {
          spawn(run.work(slot, seed, 12), [&live] { --live; });
        }
        bench.reactor->run_until([&] { return live == 0; });
        CHECK(run.refused() > 0);
        run.compare(bench.read(*node, 0, kSize));
        ::unlink(small.file("ballast").c_str());
        REQUIRE(::syncfs(node->fd()) == 0);  // ext4 gives blocks back when its journal commits
        auto flushed = bench.reactor->wait(disk.flush());
        CHECK_MESSAGE(flushed.has_value(), (flushed ? "" : flushed.error()->message()));
        const unsigned before = run.refused();
        live = SlotRun::kSlots;
        for (uint64_t slot = 0; slot < SlotRun::kSlots; ++slot) {
          spawn(run.work(slot, seed + 100, 4), [&live] { --live; });
        }
        bench.reactor->run_until([&] { return live == 0; });
        CHECK(run.refused() == before);
      }
      CHECK(!node->sequencer().failure());
      CHECK(bench.reactor->wait(disk.close()).has_value());
      run.compare(bench.read(*bench.open({.path = path, .drop_cache = true}), 0, kSize));
    }
  }
}

// Loop devices call it EIO when their file has no space.
TEST_CASE("D6: a device without the space it promised fails the flush, after which nothing is written") {
  for (const bool fua : {false, true}) {
    Bench bench;
    const SmallFileSystem small(bench.dir, "tmpfs");
    if (!small.mounted()) return;
    const std::string image = small.file("image");
    std::ofstream(image).close();
    REQUIRE(::truncate(image.c_str(), 32 << 20) == 0);
    const auto loop = test::run_command("losetup --show -f " + image);
    const std::string device = loop.output.substr(0, loop.output.find('\n'));
    if (loop.status != 0) return skipped("no loop device: " + device);
    auto node = bench.open({.path = device});
    Disk disk(node, {.id = "disk0"});
    std::string text(12 << 20, 'x');
    const iovec part{text.data(), text.size()};
    const Buffers buffers(std::span(&part, 1));
    auto failed = bench.reactor->wait(disk.write(0, buffers, {.fua = fua}));
    if (!fua) {
      CHECK(failed.has_value());  // into the page cache
      failed = bench.reactor->wait(disk.flush());
      REQUIRE(!failed.has_value());
      CHECK(failed.error()->kind == ErrorKind::FlushFailed);
    }
    REQUIRE(!failed.has_value());
    REQUIRE(node->sequencer().failure());
    if (!fua) CHECK(node->sequencer().failure()->kind == ErrorKind::FlushFailed);  // the node says it itself
    CHECK(bench.reactor->wait(disk.write(0, buffers)).error()->kind == ErrorKind::FlushFailed);
    CHECK(bench.reactor->wait(disk.flush()).error()->kind == ErrorKind::FlushFailed);
    CHECK(!bench.reactor->wait(disk.close()).has_value());
    CHECK(test::run_command("losetup -d " + device).status == 0);
  }
}

TEST_CASE("D6: ENOSPC of a flush is a failed flush, of anything else an ordinary request error") {
  Bench bench;
  std::string text(4096, 'x');
  const iovec part{text.data(), text.size()};
  const Buffers buffers(std::span(&part, 1));
  for (const CacheMode cache : {CacheMode::Writeback, CacheMode::Writethrough}) {
    for (const FaultKind kind : {FaultKind::Write, FaultKind::WriteZeroes, FaultKind::Flush}) {
      auto fault = std::make_shared<FaultNode>(bench.open({.path = bench.dir.file("image", 1 << 20)}),
                                               std::vector<FaultRule>{{.kind = kind, .number = ENOSPC}});
      Disk disk(fault, {.id = "disk0", .cache = cache});
      const auto expect = [&](Result<> result, bool fails) {
        CHECK(result.has_value() == !fails);
        if (result) return;
        CHECK(result.error()->kind ==
              (kind == FaultKind::Flush ? ErrorKind::FlushFailed : ErrorKind::NoSpace));
      };
      const bool flush = kind == FaultKind::Flush;
      const bool by_write = kind == FaultKind::Write || (flush && cache == CacheMode::Writethrough);
      expect(bench.reactor->wait(disk.write(0, buffers)), by_write);
      expect(bench.reactor->wait(disk.flush()), flush);
      expect(bench.reactor->wait(disk.write_zeroes(0, 4096)), kind != FaultKind::Write);
      expect(bench.reactor->wait(disk.write(0, buffers)), flush);
      CHECK(fault->sequencer().failure().has_value() == flush);
      CHECK(bench.reactor->wait(disk.close()).has_value() == !flush);
    }
  }
}

}  // namespace
}  // namespace spindle
