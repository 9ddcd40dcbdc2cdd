// DISCARD and WRITE_ZEROES: what is offered, what of a driver's segments is carried out, and when it is
// durable.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "devices/virtio/blk.h"
#include "devices/virtio/blk_test_rig.h"

namespace spindle::virtio {
namespace {

using test::kDiskBytes;
using test::kRingFeatures;
using test::MemoryNode;
using test::Op;
using test::Segment;
using test::TestRam;
using test::TestRequest;
using Range = BlkDiscardWriteZeroes;
using Operation = MemoryNode::Operation;

constexpr uint64_t kSectors = kDiskBytes / kBlkSector;
constexpr uint64_t kBoth = kBlkDiscard | kBlkWriteZeroes;

struct Rig : test::BlkRig {
  explicit Rig(bool unmap = true, CacheMode cache = CacheMode::Writeback,
               uint64_t features = kBlkFlush | kBoth, bool read_only = false)
      : BlkRig(features, cache, read_only, 64, unmap) {
    node->clear_log();
  }

  TestRequest request_of(std::span<const Range> ranges) {
    TestRequest request(ram, static_cast<uint32_t>(ranges.size_bytes()));
    std::ranges::copy(std::as_bytes(ranges), reinterpret_cast<std::byte*>(request.data().data()));
    return request;
  }
  uint8_t run_ranges(uint32_t type, std::vector<Range> ranges) {
    TestRequest request = request_of(ranges);
    const uint8_t status = run(request, type, 0);
    CHECK(length == 1);  // nothing is written but the status
    return status;
  }
  bool zero(uint64_t sector, uint64_t sectors) {
    return std::ranges::all_of(node->bytes(sector * 512, sectors * 512), [](uint8_t b) { return b == 0; });
  }
};

TEST_CASE("both are offered on every disk; whether zeroes unmap depends on discard= and on the image") {
  for (bool unmap : {false, true}) {
    for (uint32_t granularity : {0u, 512u, 65536u}) {
      auto reactor = *Reactor::create();
      auto node = std::make_shared<MemoryNode>(*reactor, kDiskBytes);
      node->mutable_facts().discard_granularity = granularity;
      Disk disk(node, DiskOptions{.id = "d", .discard = unmap});
      TestRam ram;
      auto device = *VirtioBlk::create(disk, ram.memory(), {});
      CHECK((device->features() & kBoth) == kBoth);
      BlkConfig config;
      device->read_config(0, {reinterpret_cast<uint8_t*>(&config), sizeof config});
      CHECK(config.discard_sector_alignment == std::max(1u, granularity / 512));
      CHECK(config.max_discard_sectors == kMaxSegmentSectors);
      CHECK(config.max_discard_seg == kMaxDiscardSegments);
      CHECK(config.max_write_zeroes_sectors == kMaxSegmentSectors);
      CHECK(config.max_write_zeroes_seg == kMaxWriteZeroesSegments);
      CHECK(config.write_zeroes_may_unmap == (unmap && granularity != 0));
    }
  }
}

TEST_CASE("a discard reaches the image with discard=unmap, and is accepted without it") {
  Rig rig;
  CHECK(rig.run_ranges(kBlkTypeDiscard, {{8, 16, 0}, {100, 1, 0}, {kSectors - 1, 1, 0}}) == kBlkStatusOk);
  CHECK(rig.node->log() == std::vector<Operation>{{Op::Discard, 8 * 512, 16 * 512},
                                                  {Op::Discard, 100 * 512, 512},
                                                  {Op::Discard, kDiskBytes - 512, 512}});
  CHECK(rig.disk.counters().discard_ops.value() == 3);

  Rig ignoring(false);
  const auto before = ignoring.node->bytes(0, kDiskBytes);
  CHECK(ignoring.run_ranges(kBlkTypeDiscard, {{8, 16, 0}}) == kBlkStatusOk);
  CHECK(ignoring.node->log().empty());
  CHECK(ignoring.node->bytes(0, kDiskBytes) == before);
}

TEST_CASE("zeroes are written, and unmap only where discard=unmap lets them") {
  for (bool unmap : {false, true}) {
    Rig rig(unmap);
    CHECK(rig.run_ranges(kBlkTypeWriteZeroes, {{8, 16, 0}}) == kBlkStatusOk);
    CHECK(rig.run_ranges(kBlkTypeWriteZeroes, {{0, kSectors, kBlkWriteZeroesUnmap}}) == kBlkStatusOk);
    CHECK(rig.node->log() == std::vector<Operation>{{Op::Zeroes, 8 * 512, 16 * 512, false, false},
                                                    {Op::Zeroes, 0, kDiskBytes, false, unmap}});
    CHECK(rig.zero(0, kSectors));
    CHECK(rig.disk.counters().zero_ops.value() == 2);
  }
}

TEST_CASE("what a segment may not say is refused, and nothing is done of the whole request") {
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  constexpr uint32_t kMany = std::numeric_limits<uint32_t>::max();
  const struct {
    Range range;
    uint8_t status;
  } bad[] = {
      {{kSectors, 1, 0}, kBlkStatusIoError},
      {{kSectors - 1, 2, 0}, kBlkStatusIoError},
      {{kSectors + 1, 0, 0}, kBlkStatusIoError},
      {{0, kSectors + 1, 0}, kBlkStatusIoError},
      {{0, kMaxSegmentSectors + 1, 0}, kBlkStatusIoError},
      {{0, kMany, 0}, kBlkStatusIoError},
      {{kHuge, 1, 0}, kBlkStatusIoError},
      {{kHuge / 512 + 1, 1, 0}, kBlkStatusIoError},  // in bytes this is 0 again
      {{kHuge - kMany + 1, kMany, 0}, kBlkStatusIoError},
      {{0, 1, 2}, kBlkStatusUnsupported},
      {{0, 1, 1u << 31}, kBlkStatusUnsupported},
      {{0, 1, kBlkWriteZeroesUnmap | 2}, kBlkStatusUnsupported},
  };
  Rig rig;
  for (const auto& [range, status] : bad) {
    CAPTURE(range.sector);
    CAPTURE(range.num_sectors);
    CHECK(rig.run_ranges(kBlkTypeWriteZeroes, {range}) == status);
    CHECK(rig.run_ranges(kBlkTypeDiscard, {range}) == status);
    CHECK(rig.run_ranges(kBlkTypeDiscard, {{0, 1, 0}, {8, 1, 0}, range}) == status);
    CHECK(rig.run_ranges(kBlkTypeDiscard, {range, {0, 1, 0}}) == status);
  }
  CHECK(rig.run_ranges(kBlkTypeDiscard, {{0, 1, kBlkWriteZeroesUnmap}}) == kBlkStatusUnsupported);
  CHECK(rig.node->log().empty());
  CHECK(rig.transport.reason.empty());
}

TEST_CASE("the number and the size of segments are checked") {
  Rig rig;
  const std::vector<Range> most(kMaxDiscardSegments, Range{5, 1, 0});
  CHECK(rig.run_ranges(kBlkTypeDiscard, most) == kBlkStatusOk);
  CHECK(rig.node->count(Op::Discard) == kMaxDiscardSegments);
  rig.node->clear_log();
  CHECK(rig.run_ranges(kBlkTypeDiscard, std::vector<Range>(kMaxDiscardSegments + 1)) == kBlkStatusIoError);
  CHECK(rig.run_ranges(kBlkTypeWriteZeroes, std::vector<Range>(kMaxWriteZeroesSegments + 1)) ==
        kBlkStatusIoError);
  for (uint32_t type : {kBlkTypeDiscard, kBlkTypeWriteZeroes}) {
    for (uint32_t bytes : {1u, 15u, 17u, 24u}) {
      TestRequest odd(rig.ram, bytes);
      CHECK(rig.run(odd, type, 0) == kBlkStatusIoError);
    }
    TestRequest none(rig.ram, 0);
    none.fill(type, 0);
    REQUIRE(rig.queue.add(none.bare_segments()));
    rig.kick();
    rig.settle();
    REQUIRE(rig.queue.take());
    CHECK(none.status() == kBlkStatusIoError);
    // No sectors are no mistake, and nothing to do; not even a flush.
    CHECK(rig.run_ranges(type, {{0, 0, 0}}) == kBlkStatusOk);
    CHECK(rig.run_ranges(type, {{kSectors, 0, 0}}) == kBlkStatusOk);
  }
  CHECK(rig.run_ranges(kBlkTypeDiscard, {{0, 0, 0}, {7, 1, 0}, {9, 0, 0}}) == kBlkStatusOk);
  CHECK(rig.node->log() == std::vector<Operation>{{Op::Discard, 7 * 512, 512}});
}

TEST_CASE("without the feature the request is not supported, on a read only disk it is an error") {
  for (const auto& [acknowledged, type, other] :
       {std::tuple{kBlkWriteZeroes, kBlkTypeDiscard, kBlkTypeWriteZeroes},
        std::tuple{kBlkDiscard, kBlkTypeWriteZeroes, kBlkTypeDiscard}}) {
    Rig rig(true, CacheMode::Writeback, kBlkFlush | acknowledged);
    CHECK(rig.run_ranges(type, {{0, 1, 0}}) == kBlkStatusUnsupported);
    CHECK(rig.node->log().empty());
    CHECK(rig.run_ranges(other, {{0, 1, 0}}) == kBlkStatusOk);

    Rig read_only(true, CacheMode::Writeback, kBlkFlush | kBoth, true);
    CHECK(read_only.run_ranges(type, {{0, 1, 0}}) == kBlkStatusIoError);
    CHECK(read_only.node->log().empty());
  }
}

TEST_CASE("segments may be cut anywhere, and what the guest changes afterwards does not count") {
  Rig rig;
  std::mt19937 random(5);
  const uint64_t out = rig.ram.allocate(16 + 32), in = rig.ram.allocate(1);
  rig.node->hold(Op::Discard);
  for (int round = 0; round < 200; ++round) {
    rig.node->clear_log();
    *rig.ram.at<BlkRequestHeader>(out) = {kBlkTypeDiscard, 0, ~0ull};  // 5.2.6.1: `sector` has no meaning
    auto* ranges = rig.ram.at<Range>(out + 16);
    ranges[0] = {3, 1, 0};
    ranges[1] = {4, 2, 0};
    std::vector<Segment> segments;
    for (uint32_t done = 0; done < 48;) {
      const uint32_t piece = std::min<uint32_t>(48 - done, 1 + random() % 20);
      segments.push_back({out + done, piece, false});
      done += piece;
    }
    segments.push_back({in, 1, true});
    REQUIRE(rig.queue.add(segments));
    rig.kick();
    rig.settle();
    REQUIRE(rig.node->held(Op::Discard) == 1);
    ranges[1] = {0, 1u << 31, 0xff};
    REQUIRE(rig.node->release_one(Op::Discard));
    rig.settle();
    REQUIRE(rig.node->release_one(Op::Discard));
    rig.settle();
    REQUIRE(rig.queue.take());
    CHECK(*rig.ram.at(in) == kBlkStatusOk);
    CHECK(rig.node->log() ==
          std::vector<Operation>{{Op::Discard, 3 * 512, 512}, {Op::Discard, 4 * 512, 1024}});
  }
}

TEST_CASE("D2, D7: in write-through they complete when they are durable, a request with one flush") {
  for (uint32_t type : {kBlkTypeDiscard, kBlkTypeWriteZeroes}) {
    CAPTURE(type);
    Rig rig(true, CacheMode::Writethrough);
    std::vector<Range> ranges{{8, 4, 0}};
    if (type == kBlkTypeDiscard) ranges.push_back({32, 4, 0});
    TestRequest request = rig.request_of(ranges);
    rig.node->hold(Op::Flush);
    rig.start(request, type, 0);
    CHECK(rig.zero(8, 4));
    CHECK(rig.node->held(Op::Flush) == 1);
    CHECK_FALSE(rig.queue.take());
    rig.node->release(Op::Flush);
    rig.settle();
    CHECK(rig.queue.take());
    CHECK(request.status() == kBlkStatusOk);
    CHECK(rig.node->durable(0, kDiskBytes) == rig.node->bytes(0, kDiskBytes));
    CHECK(rig.node->count(Op::Flush) == 1);
    CHECK(rig.disk.counters().flushes_writethrough.value() == 1);
  }
}

TEST_CASE("D1, D7: in write-back the guest's flush makes them durable") {
  Rig rig;
  CHECK(rig.run_ranges(kBlkTypeDiscard, {{8, 4, 0}}) == kBlkStatusOk);
  CHECK(rig.run_ranges(kBlkTypeWriteZeroes, {{16, 4, 0}}) == kBlkStatusOk);
  CHECK(rig.node->count(Op::Flush) == 0);
  CHECK(rig.node->durable(0, kDiskBytes) != rig.node->bytes(0, kDiskBytes));
  TestRequest flush(rig.ram, 0);
  CHECK(rig.run(flush, kBlkTypeFlush, 0) == kBlkStatusOk);
  CHECK(rig.node->durable(0, kDiskBytes) == rig.node->bytes(0, kDiskBytes));
}

TEST_CASE("host errors become IOERR; after a failed flush both are refused (D6)") {
  Rig rig;
  rig.node->fail(Op::Discard, 32 * 512, 512, ErrorKind::Io, 1);
  CHECK(rig.run_ranges(kBlkTypeDiscard, {{8, 1, 0}, {32, 1, 0}, {64, 1, 0}}) == kBlkStatusIoError);
  CHECK(rig.node->count(Op::Discard) == 2);
  rig.node->fail(Op::Zeroes, 0, kDiskBytes, ErrorKind::NoSpace, 1);
  CHECK(rig.run_ranges(kBlkTypeWriteZeroes, {{8, 1, 0}}) == kBlkStatusIoError);
  CHECK(rig.run_ranges(kBlkTypeWriteZeroes, {{8, 1, 0}}) == kBlkStatusOk);
  rig.node->fail(Op::Flush, 0, kDiskBytes, ErrorKind::Io, 1);
  TestRequest flush(rig.ram, 0);
  CHECK(rig.run(flush, kBlkTypeFlush, 0) == kBlkStatusIoError);
  rig.node->clear_log();
  for (uint32_t type : {kBlkTypeDiscard, kBlkTypeWriteZeroes})
    CHECK(rig.run_ranges(type, {{8, 1, 0}}) == kBlkStatusIoError);
  CHECK(rig.node->log().empty());
}

}  // namespace
}  // namespace spindle::virtio
