#include <doctest/doctest.h>

#include <algorithm>

#include "devices/virtio/blk.h"
#include "devices/virtio/blk_test_rig.h"

namespace spindle::virtio {
namespace {

using test::kDiskBytes;
using test::kRingFeatures;
using test::MemoryNode;
using test::Op;
using test::TestQueue;
using test::TestRam;
using test::TestRequest;
using Rig = test::BlkRig;

struct Mode {
  uint64_t acknowledged;
  CacheMode cache;
  bool shown;    // what `writeback` says after FEATURES_OK
  bool flushes;  // whether a write pays its own flush
  bool can_toggle;
};

TEST_CASE("the mode follows from the features acknowledged and the configured mode") {
  const Mode modes[] = {
      {0, CacheMode::Writeback, false, true, false},
      {0, CacheMode::Writethrough, false, true, false},
      {kBlkConfigWce, CacheMode::Writeback, false, true, false},
      {kBlkConfigWce, CacheMode::Writethrough, false, true, false},
      {kBlkFlush, CacheMode::Writeback, true, false, false},
      {kBlkFlush, CacheMode::Writethrough, false, true, false},
      {kBlkFlush | kBlkConfigWce, CacheMode::Writeback, true, false, true},
      {kBlkFlush | kBlkConfigWce, CacheMode::Writethrough, false, true, true},
      {kBlkFlush | kBlkConfigWce, CacheMode::None, true, false, true},
      {kBlkFlush | kBlkConfigWce, CacheMode::Directsync, false, true, true},
  };
  for (const Mode& mode : modes) {
    CAPTURE(mode.acknowledged);
    CAPTURE(to_string(mode.cache));
    Rig rig(mode.acknowledged, mode.cache);
    CHECK(rig.config().writeback == mode.shown);
    TestRequest request(rig.ram, 512);
    const uint64_t before = rig.node->count(Op::Flush);
    std::ranges::fill(request.data(), uint8_t{1});
    CHECK(rig.run(request, kBlkTypeOut, 5) == kBlkStatusOk);
    CHECK(rig.node->count(Op::Flush) - before == (mode.flushes ? 1 : 0));
    CHECK((rig.node->durable(0, kDiskBytes) == rig.node->bytes(0, kDiskBytes)) == mode.flushes);
    for (uint8_t value : {uint8_t{1}, uint8_t{0}}) {
      CHECK(rig.device->config_writable(kBlkConfigWriteback, 1) == mode.can_toggle);
      CHECK(rig.toggle(value).has_value());
      CHECK(rig.config().writeback == (mode.can_toggle ? value : mode.shown));
    }
    rig.reactor->wait(rig.device->reset());  // D4
    CHECK(rig.config().writeback == starts_with_write_cache(mode.cache));
  }
}

TEST_CASE("before FEATURES_OK `writeback` shows the configured mode") {
  auto reactor = *Reactor::create();
  for (CacheMode cache : {CacheMode::Writeback, CacheMode::Writethrough}) {
    Disk disk(std::make_shared<MemoryNode>(*reactor, kDiskBytes), DiskOptions{.id = "d", .cache = cache});
    TestRam ram;
    auto device = *VirtioBlk::create(disk, ram.memory(), {});
    uint8_t shown[1];
    device->read_config(kBlkConfigWriteback, shown);
    CHECK(shown[0] == starts_with_write_cache(cache));
    // CONFIG_WCE alone: it says 0 from the very moment of the acknowledgement.
    CHECK(device->acknowledge(kFeatureVersion1 | kBlkConfigWce));
    device->read_config(kBlkConfigWriteback, shown);
    CHECK(shown[0] == 0);
  }
}

TEST_CASE("write-through: a write's used element appears only after its flush") {
  Rig rig(0);
  TestRequest request(rig.ram, 512);
  rig.node->hold(Op::Flush);
  std::ranges::fill(request.data(), uint8_t{9});
  rig.start(request, kBlkTypeOut, 3);
  CHECK(rig.node->held(Op::Flush) == 1);
  CHECK(rig.node->bytes(3 * 512, 1)[0] == 9);
  CHECK_FALSE(rig.queue.take());
  CHECK(request.status() == 0xff);
  rig.node->release(Op::Flush);
  rig.settle();
  CHECK(rig.queue.take());
  CHECK(request.status() == kBlkStatusOk);
  CHECK(rig.node->durable(3 * 512, 1)[0] == 9);
}

TEST_CASE("D3: turning the cache off flips first and ends when what completed earlier is durable") {
  Rig rig;
  TestRequest before(rig.ram, 512), after(rig.ram, 512);
  std::ranges::fill(before.data(), uint8_t{1});
  CHECK(rig.run(before, kBlkTypeOut, 0) == kBlkStatusOk);
  rig.node->hold(Op::Flush);
  bool ended = false;
  const uint8_t off[] = {0};
  spawn(rig.device->write_config(kBlkConfigWriteback, off),
        [&](Result<> result) { ended = result.has_value(); });
  rig.settle();
  CHECK_FALSE(ended);
  CHECK(rig.config().writeback == 1);
  rig.start(after, kBlkTypeOut, 1);
  CHECK_FALSE(rig.queue.take());  // a later completion pays its own flush
  rig.node->release(Op::Flush);
  rig.settle();
  CHECK(ended);
  CHECK(rig.config().writeback == 0);
  CHECK(rig.queue.take());
  CHECK(rig.node->durable(0, 1)[0] == 1);
  CHECK(rig.disk.counters().cache_toggles.value() == 1);
}

TEST_CASE("D3, D6: a toggle whose flush fails reads back 1, and the disk refuses writes from then on") {
  Rig rig;
  TestRequest request(rig.ram, 512);
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusOk);
  rig.node->fail(Op::Flush, 0, kDiskBytes, ErrorKind::Io, 1);
  CHECK_FALSE(rig.toggle(0).has_value());
  CHECK(rig.config().writeback == 1);
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusIoError);
  CHECK(rig.run(request, kBlkTypeFlush, 0) == kBlkStatusIoError);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
}

TEST_CASE("`writeback` takes 0 and 1, as a byte, and nothing else") {
  Rig rig;
  CHECK(rig.toggle(2).has_value());
  CHECK(rig.config().writeback == 1);
  CHECK(rig.toggle(0xff).has_value());
  CHECK(rig.toggle(0).has_value());
  CHECK(rig.toggle(0x81).has_value());
  CHECK(rig.config().writeback == 0);
  for (std::size_t width : {std::size_t{2}, std::size_t{4}, std::size_t{8}}) {
    CHECK_FALSE(rig.device->config_writable(kBlkConfigWriteback, width));
  }
  for (uint64_t offset : {uint64_t{0}, uint64_t{31}, uint64_t{33}, ~uint64_t{0}}) {
    CHECK_FALSE(rig.device->config_writable(offset, 1));
  }
}

TEST_CASE("host errors become IOERR, and a failed flush ends writing (D6)") {
  Rig rig;
  TestRequest request(rig.ram, 512);
  rig.node->fail(Op::Read, 0, kDiskBytes, ErrorKind::Io, 1);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusIoError);
  CHECK(rig.length == 0);
  rig.node->fail(Op::Write, 0, kDiskBytes, ErrorKind::NoSpace, 1);
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusIoError);
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusOk);  // an ordinary error leaves nothing behind
  rig.node->fail(Op::Flush, 0, kDiskBytes, ErrorKind::Io, 1);
  CHECK(rig.run(request, kBlkTypeFlush, 0) == kBlkStatusIoError);
  CHECK(rig.run(request, kBlkTypeFlush, 0) == kBlkStatusIoError);
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusIoError);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
}

TEST_CASE("a failed flush at FEATURES_OK leaves a write-through disk that refuses writes") {
  Rig rig;
  TestRequest request(rig.ram, 512);
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusOk);
  rig.reactor->wait(rig.device->reset());
  rig.node->fail(Op::Flush, 0, kDiskBytes, ErrorKind::Io, 1);
  REQUIRE(rig.device->acknowledge(kRingFeatures));
  rig.reactor->wait(rig.device->negotiate());
  TestQueue queue(rig.ram, 8, true);
  REQUIRE(rig.device->start_queue(0, queue.layout()).empty());
  request.fill(kBlkTypeOut, 0);
  queue.add(request.segments(kBlkTypeOut));
  queue.publish();
  rig.device->notify(0);
  rig.settle();
  CHECK(queue.take());
  CHECK(request.status() == kBlkStatusIoError);
}

TEST_CASE("reset waits for what is in flight; data lands, used elements do not") {
  Rig rig;
  TestRequest read(rig.ram, 512), write(rig.ram, 512);
  std::ranges::fill(write.data(), uint8_t{0x77});
  rig.node->hold(Op::Read);
  rig.node->hold(Op::Write);
  rig.start(read, kBlkTypeIn, 1);
  rig.start(write, kBlkTypeOut, 2);
  CHECK(rig.device->in_flight() == 2);
  bool ended = false;
  spawn(rig.device->reset(), [&] { ended = true; });
  rig.settle();
  CHECK_FALSE(ended);
  rig.kick();  // of no use any more
  rig.node->release(Op::Read);
  rig.settle();
  CHECK_FALSE(ended);
  CHECK(std::ranges::equal(read.data(), rig.node->bytes(512, 512)));
  rig.node->release(Op::Write);
  rig.settle();
  CHECK(ended);
  CHECK(rig.node->bytes(1024, 1)[0] == 0x77);
  CHECK_FALSE(rig.queue.take());
  CHECK(rig.transport.interrupts == 0);
}

TEST_CASE("D4: a reset that reverts to write-through ends after the flush") {
  Rig rig(kBlkFlush | kBlkConfigWce, CacheMode::Writethrough);
  CHECK(rig.toggle(1).has_value());
  TestRequest request(rig.ram, 512);
  std::ranges::fill(request.data(), uint8_t{3});
  CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusOk);
  CHECK(rig.node->durable(0, 1)[0] != 3);
  rig.node->hold(Op::Flush);
  bool ended = false;
  spawn(rig.device->reset(), [&] { ended = true; });
  rig.settle();
  CHECK_FALSE(ended);
  rig.node->release(Op::Flush);
  rig.settle();
  CHECK(ended);
  CHECK(rig.node->durable(0, 1)[0] == 3);
  CHECK(rig.config().writeback == 0);
}

}  // namespace
}  // namespace spindle::virtio
