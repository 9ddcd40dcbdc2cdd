// Disk by itself: what is counted, refused, flushed and shown. Interleavings are in durability_model_test.cc.
#include "block/disk.h"

#include <doctest/doctest.h>

#include <optional>

#include "block/test_support/held_node.h"

namespace spindle {
namespace {

using test::HeldNode;
using test::settle;
using Slot = std::shared_ptr<std::optional<Result<>>>;

struct Bench {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create(64));
  std::shared_ptr<HeldNode> node = std::make_shared<HeldNode>(*reactor);
  Disk disk;
  uint64_t pattern = 7;
  iovec part{&pattern, sizeof pattern};

  explicit Bench(DiskOptions options = {.id = "disk0"}) : disk(node, std::move(options)) {}

  Slot start(Task<Result<>> task) {
    auto slot = std::make_shared<std::optional<Result<>>>();
    spawn(std::move(task), [slot](Result<> result) { slot->emplace(std::move(result)); });
    return slot;
  }
  Task<Result<>> read(uint64_t offset) { co_return co_await disk.read(offset, Buffers(std::span(&part, 1))); }
  Slot write(uint64_t offset = 0, bool fua = false) {
    return start(disk.write(offset, Buffers(std::span(&part, 1)), WriteFlags{.fua = fua}));
  }
  void release(HeldNode::Held::Kind kind, bool fail = false) {
    REQUIRE(node->held().size() == 1);
    REQUIRE(node->held().front()->kind == kind);
    node->release(node->held().front(), fail);
    settle(*reactor);
  }
  void release_write(bool fail = false) { release(HeldNode::Held::Kind::Write, fail); }
  void release_flush(bool fail = false) { release(HeldNode::Held::Kind::Flush, fail); }
  bool idle() const { return node->held().empty(); }
};

bool succeeded(const Slot& slot) {
  return slot->has_value() && (*slot)->has_value();
}
bool failed_as(const Slot& slot, ErrorKind kind) {
  return slot->has_value() && !(*slot)->has_value() && (*slot)->error()->kind == kind;
}

TEST_CASE("D1: with the cache on a write completes without a flush") {
  Bench bench;
  auto write = bench.write();
  bench.release_write();
  CHECK(succeeded(write));
  CHECK(bench.idle());
  CHECK(bench.disk.counters().write_ops.value() == 1);
  CHECK(bench.disk.counters().write_bytes.value() == 8);
}

TEST_CASE("D2: with the cache off a write completes after a flush that started later") {
  Bench bench({.id = "disk0", .cache = CacheMode::Writethrough});
  auto write = bench.write();
  bench.release_write();
  CHECK_FALSE(write->has_value());
  bench.release_flush();
  CHECK(succeeded(write));
  CHECK(bench.node->durable(bench.pattern));
  CHECK(bench.disk.counters().flushes_writethrough.value() == 1);
  CHECK(bench.disk.counters().flushes_issued.value() == 1);
}

TEST_CASE("D2: zero-writes and discards pay for write-through too") {
  Bench bench({.id = "disk0", .cache = CacheMode::Directsync, .discard = true});
  auto zero = bench.start(bench.disk.write_zeroes(0, 512));
  CHECK_FALSE(zero->has_value());
  bench.release_flush();
  CHECK(succeeded(zero));
  auto discard = bench.start(bench.disk.discard(0, 512));
  CHECK_FALSE(discard->has_value());
  bench.release_flush();
  CHECK(succeeded(discard));
  CHECK(bench.disk.counters().flushes_writethrough.value() == 2);
}

TEST_CASE("D2: several ranges are discarded with one flush, and none if one of them is out of range") {
  Bench bench({.id = "disk0", .cache = CacheMode::Directsync, .discard = true});
  const ByteRange good[] = {{0, 512}, {4096, 512}}, bad[] = {{0, 512}, {bench.node->size(), 1}};
  auto discard = bench.start(bench.disk.discard(good));
  CHECK_FALSE(discard->has_value());
  bench.release_flush();
  CHECK(succeeded(discard));
  CHECK(bench.disk.counters().discard_ops.value() == 2);
  CHECK(bench.disk.counters().flushes_writethrough.value() == 1);
  CHECK(failed_as(bench.start(bench.disk.discard(bad)), ErrorKind::Invalid));
  CHECK(succeeded(bench.start(bench.disk.discard(std::span<const ByteRange>()))));
  CHECK(bench.disk.counters().discard_ops.value() == 2);
  CHECK(bench.idle());
}

TEST_CASE("a FUA write goes down as FUA with the cache on, and as write and flush with it off") {
  Bench bench;
  auto fua = bench.write(0, true);
  CHECK(bench.node->held().front()->fua);
  bench.release_write();
  CHECK(succeeded(fua));
  CHECK(bench.disk.counters().flushes_writethrough.value() == 0);

  Bench through({.id = "disk0", .cache = CacheMode::Writethrough});
  auto write = through.write(0, true);
  CHECK_FALSE(through.node->held().front()->fua);
  through.release_write();
  through.release_flush();
  CHECK(succeeded(write));
  for (Bench* each : {&bench, &through}) CHECK(each->disk.counters().fua_writes.value() == 1);
}

TEST_CASE("D3: a toggle to off waits for the flush of what completed before it") {
  Bench bench;
  bench.write();
  bench.release_write();
  auto toggle = bench.start(bench.disk.set_write_cache(false));
  CHECK_FALSE(toggle->has_value());
  CHECK(bench.disk.write_cache());  // not shown off before it is true
  bench.release_flush();
  CHECK(succeeded(toggle));
  CHECK_FALSE(bench.disk.write_cache());
  CHECK(bench.disk.counters().flushes_toggle.value() == 1);
  CHECK(bench.disk.counters().cache_toggles.value() == 1);
}

TEST_CASE("D3: a write in flight when the cache is turned off pays its own flush") {
  Bench bench;
  auto clean = bench.start(bench.disk.flush());
  bench.release_flush();
  auto write = bench.write();
  auto toggle = bench.start(bench.disk.set_write_cache(false));
  CHECK(succeeded(toggle));  // nothing had completed: elided
  CHECK(bench.disk.counters().flushes_elided.value() == 1);
  bench.release_write();
  CHECK_FALSE(write->has_value());
  bench.release_flush();
  CHECK(succeeded(write));
}

TEST_CASE("D3: setting what is set neither counts nor flushes; turning on is immediate") {
  Bench bench({.id = "disk0", .cache = CacheMode::Writethrough});
  CHECK(succeeded(bench.start(bench.disk.set_write_cache(false))));
  CHECK(bench.disk.counters().cache_toggles.value() == 0);
  CHECK(succeeded(bench.start(bench.disk.set_write_cache(true))));
  CHECK(bench.disk.write_cache());
  CHECK(bench.disk.counters().cache_toggles.value() == 1);
  CHECK(bench.idle());
}

TEST_CASE("D3: two toggles take turns, so the mode shown is never stricter than the mode in force") {
  Bench bench;
  auto off = bench.start(bench.disk.set_write_cache(false));
  auto on = bench.start(bench.disk.set_write_cache(true));
  CHECK_FALSE(on->has_value());
  bench.release_flush();
  CHECK(succeeded(off));
  CHECK(succeeded(on));
  CHECK(bench.disk.write_cache());
  auto write = bench.write();
  bench.release_write();
  CHECK(succeeded(write));
}

TEST_CASE("D3, D6: if the toggle's flush fails the cache is still shown on, and nothing succeeds any more") {
  Bench bench;
  auto toggle = bench.start(bench.disk.set_write_cache(false));
  bench.release_flush(true);
  CHECK(failed_as(toggle, ErrorKind::FlushFailed));
  CHECK(bench.disk.write_cache());
  CHECK(failed_as(bench.write(), ErrorKind::FlushFailed));
  CHECK(failed_as(bench.start(bench.disk.flush()), ErrorKind::FlushFailed));
  CHECK(failed_as(bench.start(bench.disk.set_write_cache(false)), ErrorKind::FlushFailed));
  CHECK(succeeded(bench.start(bench.disk.set_write_cache(true))));
  CHECK(succeeded(bench.start(bench.read(0))));
}

TEST_CASE("D6: a failed FUA write counts as a failed flush, an ordinary failed write does not") {
  Bench bench;
  auto write = bench.write();
  bench.release_write(true);
  CHECK(failed_as(write, ErrorKind::Io));
  auto fua = bench.write(0, true);
  bench.release_write(true);
  CHECK(failed_as(fua, ErrorKind::Io));
  CHECK(failed_as(bench.write(), ErrorKind::FlushFailed));
}

TEST_CASE("D5: a failed write leaves the node dirty") {
  Bench bench;
  bench.start(bench.disk.flush());
  bench.release_flush();
  bench.write();
  bench.release_write(true);
  bench.start(bench.disk.flush());
  CHECK_FALSE(bench.idle());
  bench.release_flush();
  CHECK(bench.disk.counters().flushes_issued.value() == 2);
}

TEST_CASE("D9: cache=unsafe answers flushes, and counts them as elided") {
  Bench bench({.id = "disk0", .cache = CacheMode::Unsafe});
  auto flush = bench.start(bench.disk.flush());
  bench.release_flush();  // the node hands its metadata on; its file never syncs
  CHECK(succeeded(flush));
  CHECK(bench.disk.counters().flushes_issued.value() == 0);
  CHECK(bench.disk.counters().flushes_elided.value() == 1);
}

TEST_CASE(
    "requests outside the disk, and writes to a read-only one, end with the right error and reach no node") {
  Bench bench({.id = "disk0", .read_only = true});
  const uint64_t end = bench.disk.size();
  for (uint64_t offset : {end - 7, end, end + 1, UINT64_MAX, UINT64_MAX - 3}) {
    CHECK(failed_as(bench.start(bench.read(offset)), ErrorKind::Invalid));
    CHECK(failed_as(bench.write(offset), ErrorKind::Invalid));
    CHECK(failed_as(bench.start(bench.disk.discard(offset, UINT64_MAX)), ErrorKind::Invalid));
  }
  CHECK(failed_as(bench.write(), ErrorKind::ReadOnly));
  CHECK(failed_as(bench.start(bench.disk.write_zeroes(0, 512)), ErrorKind::ReadOnly));
  CHECK(bench.idle());
  CHECK(bench.disk.counters().errors.value() == 17);
}

TEST_CASE("drain returns when the last request has ended") {
  Bench bench;
  auto write = bench.write();
  bool drained = false;
  spawn(bench.disk.drain(), [&] { drained = true; });
  settle(*bench.reactor);
  CHECK_FALSE(drained);
  bench.release_write();
  CHECK(drained);
}

TEST_CASE("a read is in flight until it is answered, however long the object lives that was awaited") {
  Bench bench;
  bool drained = false;
  const auto reader = [](Bench& b, bool& done) -> Task<void> {
    auto read = b.disk.read(0, Buffers(std::span(&b.part, 1)));
    const Result<> result = co_await read;
    CHECK(result.has_value());
    co_await b.disk.drain();
    done = true;
  };
  spawn(reader(bench, drained));
  settle(*bench.reactor);
  CHECK(drained);
  CHECK(bench.disk.counters().read_ops.value() == 1);
}

TEST_CASE("resize waits for what is in flight, and is durable with the cache off (D2)") {
  Bench bench({.id = "disk0", .cache = CacheMode::Writethrough});
  auto write = bench.write((1 << 20) - 8);
  auto resize = bench.start(bench.disk.resize(4096));
  CHECK(bench.disk.size() == 1 << 20);
  bench.release_write();
  CHECK(bench.disk.size() == 1 << 20);
  bench.release_flush();  // of the write
  CHECK(succeeded(write));
  CHECK(bench.disk.size() == 4096);
  CHECK_FALSE(resize->has_value());
  bench.release_flush();
  CHECK(succeeded(resize));
  CHECK(failed_as(bench.write(4096 - 7), ErrorKind::Invalid));
  CHECK(succeeded(bench.start(bench.read(4096 - 8))));
}

TEST_CASE("D5: a disk is dirty after a resize") {
  Bench bench;
  bench.start(bench.disk.flush());
  bench.release_flush();
  CHECK(succeeded(bench.start(bench.disk.resize(1 << 21))));
  CHECK(bench.idle());  // D1: with the cache on nothing is flushed yet
  auto flush = bench.start(bench.disk.flush());
  bench.release_flush();
  CHECK(succeeded(flush));
}

TEST_CASE("a resize that cannot be leaves the disk as it was") {
  Bench bench;
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{4097}, UINT64_MAX}) {
    CHECK(failed_as(bench.start(bench.disk.resize(bytes)), ErrorKind::Invalid));
  }
  CHECK(bench.disk.size() == 1 << 20);
  bench.start(bench.disk.flush());
  bench.release_flush(/*fail=*/true);
  CHECK(failed_as(bench.start(bench.disk.resize(4096)), ErrorKind::FlushFailed));  // D6
  CHECK(bench.disk.size() == 1 << 20);
  Bench read_only({.id = "disk0", .read_only = true});
  CHECK(failed_as(read_only.start(read_only.disk.resize(4096)), ErrorKind::ReadOnly));
}

TEST_CASE("close flushes what was modified as a background flush, and a clean or untouched disk not at all") {
  Bench untouched;
  CHECK(succeeded(untouched.start(untouched.disk.close())));
  CHECK(untouched.disk.counters().flushes_background.value() == 0);

  Bench dirty;
  dirty.write();
  dirty.release_write();
  auto closed = dirty.start(dirty.disk.close());
  dirty.release_flush();
  CHECK(succeeded(closed));
  CHECK(dirty.disk.counters().flushes_background.value() == 1);

  Bench clean;
  clean.start(clean.disk.flush());
  clean.release_flush();
  CHECK(succeeded(clean.start(clean.disk.close())));
  CHECK(clean.disk.counters().flushes_background.value() == 0);
}

}  // namespace
}  // namespace spindle
