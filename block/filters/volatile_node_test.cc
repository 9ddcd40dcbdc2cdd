#include "block/filters/volatile_node.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <list>
#include <random>

#include "block/filters/fault_node.h"
#include "block/protocols/file_node.h"
#include "block/test_support/environment.h"
#include "block/test_support/model_check.h"

namespace spindle {
namespace {

using test::ModelCheck;
using test::TempDir;

struct Bench {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create());
  TempDir dir;
  std::string path = dir.file("image", 300'000);
  std::shared_ptr<FileNode> file = std::move(*FileNode::open(*reactor, {.path = path}));
  std::shared_ptr<FaultNode> fault = std::make_shared<FaultNode>(file, std::vector<FaultRule>{});
  std::shared_ptr<VolatileNode> node;

  explicit Bench(uint64_t max_bytes = 64 << 20)
      : node(std::make_shared<VolatileNode>(fault, VolatileNode::Options{.max_bytes = max_bytes})) {}

  Result<> write(Node& to, uint64_t offset, std::string text, bool fua = false) {
    const iovec part{text.data(), text.size()};
    return reactor->wait(to.write(offset, Buffers(std::span(&part, 1)), {.fua = fua}));
  }
  std::string read(Node& from, uint64_t offset, std::size_t length) {
    std::string text(length, '?');
    const iovec part{text.data(), text.size()};
    auto result = reactor->wait(from.read(offset, Buffers(std::span(&part, 1))));
    CHECK_MESSAGE(result.has_value(), (result ? "" : result.error()->message()));
    return text;
  }
  Result<> flush() { return reactor->wait(node->flush()); }
};

TEST_CASE("volatile: random operations agree with a byte array, and all is below after a flush") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Bench bench;
    ModelCheck check(*bench.reactor, *bench.node, {.seed = seed, .resize = true});
    check.run();
    CHECK(bench.flush().has_value());
    CHECK(bench.node->holds_nothing());
    check.check(*bench.file);
  }
}

TEST_CASE("volatile: the same with little memory, which is never exceeded") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Bench bench(128 << 10);
    ModelCheck check(*bench.reactor, *bench.node, {.seed = seed, .resize = true});
    check.run();
    CHECK(bench.node->held_bytes() <= 128 << 10);
    CHECK(bench.flush().has_value());
    check.check(*bench.file);
  }
}

TEST_CASE("volatile: writes, zeroes and sizes stay up until a flush") {
  Bench bench;
  CHECK(bench.write(*bench.file, 0, std::string(8192, 'o')).has_value());
  CHECK(bench.write(*bench.node, 0, "new").has_value());
  CHECK(bench.reactor->wait(bench.node->write_zeroes(4096, 100, {})).has_value());
  CHECK(bench.reactor->wait(bench.node->resize(400'000)).has_value());
  CHECK(bench.read(*bench.node, 0, 4) == "newo");
  CHECK(bench.read(*bench.node, 4095, 3) == std::string("o\0\0", 3));
  CHECK(bench.read(*bench.file, 0, 3) == "ooo");
  CHECK(bench.read(*bench.file, 4096, 1) == "o");
  CHECK(bench.file->size() == 300'000);
  CHECK(bench.flush().has_value());
  CHECK(bench.read(*bench.file, 0, 4) == "newo");
  CHECK(bench.read(*bench.file, 4096, 1) == std::string(1, '\0'));
  CHECK(bench.file->size() == 400'000);
  CHECK(bench.file->protocol_counters()->fdatasyncs == 1);
}

TEST_CASE("volatile: drop is a power cut: what was flushed stays, all else is gone") {
  Bench bench;
  CHECK(bench.write(*bench.node, 0, "flushed").has_value());
  CHECK(bench.flush().has_value());
  CHECK(bench.write(*bench.node, 0, "dropped").has_value());
  CHECK(bench.write(*bench.node, 1000, "dropped").has_value());
  CHECK(bench.reactor->wait(bench.node->resize(10)).has_value());
  bench.node->drop();
  CHECK(bench.node->size() == 300'000);
  CHECK(bench.read(*bench.node, 0, 7) == "flushed");
  CHECK(bench.read(*bench.node, 1000, 1) == std::string(1, '\0'));
}

TEST_CASE("volatile: a FUA write goes down by itself, over what it covers") {
  Bench bench;
  CHECK(bench.write(*bench.node, 0, "aaaaaaaaaa").has_value());
  CHECK(bench.write(*bench.node, 3, "FUA", true).has_value());
  CHECK(bench.read(*bench.file, 0, 10) == std::string("\0\0\0FUA\0\0\0\0", 10));
  CHECK(bench.read(*bench.node, 0, 10) == "aaaFUAaaaa");
  CHECK(bench.write(*bench.node, 4, "x").has_value());
  CHECK(bench.flush().has_value());
  CHECK(bench.read(*bench.file, 0, 10) == "aaaFxAaaaa");
}

TEST_CASE("volatile: what was cut off and grown again reads as zeroes, here and below") {
  Bench bench;
  CHECK(bench.write(*bench.file, 0, std::string(300'000, 'o')).has_value());
  CHECK(bench.write(*bench.node, 200'000, "held").has_value());
  CHECK(bench.reactor->wait(bench.node->resize(100'000)).has_value());
  CHECK(bench.reactor->wait(bench.node->resize(250'000)).has_value());
  CHECK(bench.read(*bench.node, 99'999, 3) == std::string("o\0\0", 3));
  CHECK(bench.read(*bench.node, 200'000, 4) == std::string(4, '\0'));
  CHECK(bench.flush().has_value());
  CHECK(bench.file->size() == 250'000);
  CHECK(bench.read(*bench.file, 99'999, 3) == std::string("o\0\0", 3));
  CHECK(bench.read(*bench.file, 200'000, 4) == std::string(4, '\0'));
}

TEST_CASE("volatile: if the child fails a write or the flush, the flush fails and all stays held") {
  for (const FaultKind kind : {FaultKind::Write, FaultKind::Flush}) {
    Bench bench;
    bench.fault->add({.kind = kind, .number = EIO});
    CHECK(bench.write(*bench.node, 0, "data").has_value());
    const uint64_t held = bench.node->held_bytes();
    auto result = bench.flush();
    REQUIRE(!result.has_value());
    CHECK(result.error()->number == EIO);
    CHECK(bench.node->held_bytes() == held);
    CHECK(bench.read(*bench.node, 0, 4) == "data");
    const std::string below = bench.read(*bench.file, 0, 4);
    CHECK(bench.reactor->wait(bench.node->close()).has_value());  // D6: writes nothing any more
    auto file = FileNode::open(*bench.reactor, {.path = bench.path});
    REQUIRE(file.has_value());
    CHECK(bench.read(**file, 0, 4) == below);
  }
}

TEST_CASE("volatile: a write that arrives while a flush is under way is not lost by it") {
  Bench bench;
  bench.fault->add({.kind = FaultKind::Flush, .hold = true});
  CHECK(bench.write(*bench.node, 0, "first").has_value());
  bool flushed = false;
  spawn(bench.node->flush(), [&](Result<> result) {
    CHECK(result.has_value());
    flushed = true;
  });
  bench.reactor->run_until([&] { return bench.fault->held() == 1; });
  CHECK(bench.write(*bench.node, 0, "later").has_value());
  CHECK(!flushed);
  bench.fault->release_all();
  bench.reactor->run_until([&] { return flushed; });
  CHECK(bench.read(*bench.node, 0, 5) == "later");
  CHECK(bench.read(*bench.file, 0, 5) == "first");
  CHECK(!bench.node->holds_nothing());
}

TEST_CASE("volatile: a read that began before a flush let go of the data still sees it") {
  Bench bench;
  bench.fault->add({.kind = FaultKind::Read, .hold = true, .after = true});  // has read the old bytes by then
  CHECK(bench.write(*bench.node, 10, "data").has_value());
  std::string text(20, '?');
  const iovec part{text.data(), text.size()};
  bool done = false;
  spawn(bench.node->read(0, Buffers(std::span(&part, 1))), [&](Result<> result) {
    CHECK(result.has_value());
    done = true;
  });
  bench.reactor->run_until([&] { return bench.fault->held() == 1; });
  CHECK(bench.flush().has_value());
  CHECK(bench.node->holds_nothing());
  bench.fault->release_all();
  bench.reactor->run_until([&] { return done; });
  CHECK(text.substr(10, 4) == "data");
}

TEST_CASE("volatile: making room hands down the oldest, without a flush, and fails as the child does") {
  Bench bench(128 << 10);
  for (int i = 0; i < 40; ++i) {
    CHECK(bench.write(*bench.node, i * 4096, std::string(4096, static_cast<char>('A' + i))).has_value());
    CHECK(bench.node->held_bytes() <= 128 << 10);
  }
  CHECK(bench.file->protocol_counters()->fdatasyncs == 0);
  CHECK(bench.file->protocol_counters()->writes > 0);
  CHECK(bench.read(*bench.file, 0, 1) == "A");
  CHECK(bench.read(*bench.file, 39 * 4096, 1) == std::string(1, '\0'));
  bench.fault->add({.kind = FaultKind::Write, .always = true, .number = ENOSPC});
  Result<> result;
  for (int i = 0; i < 40 && result; ++i) result = bench.write(*bench.node, i * 4096, std::string(4096, 'z'));
  REQUIRE(!result.has_value());
  CHECK(result.error()->kind == ErrorKind::NoSpace);
  CHECK(bench.node->held_bytes() <= 128 << 10);
}

TEST_CASE("volatile: with less memory than one operation takes, everything goes down at once") {
  for (const uint64_t max_bytes : {0, 1, 127, 383, 384, 1000, 1279, 1500, 3000}) {
    Bench bench(max_bytes);
    ModelCheck check(*bench.reactor, *bench.node, {.seed = max_bytes, .batches = 40, .resize = true});
    check.run();
    CHECK(bench.node->held_bytes() <= max_bytes);
    CHECK(bench.flush().has_value());
    check.check(*bench.file);
  }
}

TEST_CASE("volatile: FUA writes that split what is held keep to the memory allowed") {
  constexpr uint64_t kMax = 8 << 10;
  Bench bench(kMax);
  CHECK(bench.reactor->wait(bench.node->write_zeroes(0, 300'000, {})).has_value());
  CHECK(bench.reactor->wait(bench.node->discard(0, 300'000)).has_value());
  for (uint64_t i = 0; i < 200; ++i) {
    if (i % 2 == 0) {
      CHECK(bench.write(*bench.node, i * 1000, "F", true).has_value());
    } else {
      CHECK(bench.reactor->wait(bench.node->write_zeroes(i * 1000, 1, {.fua = true})).has_value());
    }
    CHECK(bench.node->held_bytes() <= kMax);
  }
  CHECK(bench.read(*bench.node, 2000, 2) == std::string("F\0", 2));
}

TEST_CASE("volatile: resizes, flushes and writes all at once leave alone what lies below every size") {
  constexpr uint64_t kBelow = 64 << 10;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Bench bench(seed % 2 ? 40 << 10 : 64 << 20);
    std::mt19937_64 random(seed);
    std::string expected(kBelow, '\0');
    std::list<std::string> texts;
    std::list<iovec> parts;
    uint64_t size = 300'000;
    for (int round = 0; round < 60; ++round) {
      int running = 0;
      const auto ended = [&](Result<> result) {
        // A write above may come after the cut of what it meant.
        if (!result) CHECK_MESSAGE(result.error()->kind == ErrorKind::Invalid, result.error()->message());
        --running;
      };
      const auto write = [&](uint64_t offset, uint64_t length, bool fua) {
        texts.emplace_back(length, static_cast<char>('a' + random() % 26));
        parts.push_back({texts.back().data(), length});
        ++running;
        spawn(bench.node->write(offset, Buffers(std::span(&parts.back(), 1)), {.fua = fua}), ended);
      };
      for (uint64_t slot = 0; slot < 4; ++slot) {  // one write to each quarter below
        const uint64_t length = 1 + random() % 9000;
        const uint64_t offset = slot * kBelow / 4 + random() % (kBelow / 4 - length);
        write(offset, length, random() % 4 == 0);
        std::memcpy(expected.data() + offset, texts.back().data(), length);
        write(kBelow + random() % 200'000, 1 + random() % 20'000, random() % 4 == 0);
        size = kBelow + random() % 200'000;
        ++running;
        spawn(bench.node->resize(size), ended);
        if (random() % 4 != 0) continue;
        ++running;
        spawn(bench.node->flush(), ended);
      }
      bench.reactor->run_until([&] { return running == 0; });
      REQUIRE(bench.read(*bench.node, 0, kBelow) == expected);
    }
    CHECK(bench.node->size() == size);
    CHECK(bench.flush().has_value());
    CHECK(bench.file->size() == size);
    CHECK(bench.read(*bench.file, 0, size) == bench.read(*bench.node, 0, size));
    CHECK(bench.read(*bench.file, 0, kBelow) == expected);
  }
}

TEST_CASE("volatile: SIGKILL of the process is a power cut") {
  Bench bench;
  const pid_t child = ::fork();
  if (child == 0) {
    // A ring of its own: a ring does not survive fork.
    auto reactor = std::move(*Reactor::create());
    auto file = std::move(*FileNode::open(*reactor, {.path = bench.path, .locking = LockPolicy::Off}));
    VolatileNode node(file, {});
    const auto put = [&](uint64_t offset, std::string text) {
      const iovec part{text.data(), text.size()};
      static_cast<void>(reactor->wait(node.write(offset, Buffers(std::span(&part, 1)), {})));
    };
    put(0, "flushed");
    static_cast<void>(reactor->wait(node.flush()));
    put(0, "no more");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(bench.read(*bench.file, 0, 7) == "flushed");
}

}  // namespace
}  // namespace spindle
