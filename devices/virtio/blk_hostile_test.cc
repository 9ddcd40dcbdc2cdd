// Requests whose buffers point the wrong way or hold nothing: each is answered as it stands, by what its
// header says and its buffers can take, and nothing else changes.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "devices/virtio/blk_test_rig.h"

namespace spindle::virtio {
namespace {

using test::BlkRig;
using test::kDiskBytes;
using test::Op;
using test::Segment;

struct HostileRig : BlkRig {
  HostileRig() : BlkRig(kBlkFlush | kBlkDiscard | kBlkWriteZeroes), base(ram.allocate(4096)) {}

  uint64_t header() const { return base; }
  uint64_t data() const { return base + 1024; }
  uint64_t status_byte() const { return base + 600; }
  std::vector<uint8_t> memory() { return {ram.at(base), ram.at(base) + 4096}; }

  /// The status. Memory beside it must be as it was: nothing here reads data that there is room for.
  uint8_t run(uint32_t type, uint64_t sector, const std::vector<Segment>& segments) {
    std::ranges::fill(std::span(ram.at(base), 4096), uint8_t{0xcc});
    *ram.at<BlkRequestHeader>(base) = {.type = type, .reserved = 0, .sector = sector};
    auto expected = memory();
    REQUIRE(queue.add(segments));
    kick();
    settle();
    const auto used = queue.take();
    REQUIRE(used);
    length = used->length;
    const uint8_t status = *ram.at(status_byte());
    expected[status_byte() - base] = status;
    CHECK((memory() == expected));
    return status;
  }

  uint64_t base;
};

TEST_CASE("wrong direction: data is neither read from what is writable nor written to what is readable") {
  HostileRig rig;
  const auto before = rig.node->bytes(0, kDiskBytes);
  const Segment header{rig.header(), 16, false}, status{rig.status_byte(), 1, true};
  const Segment readable{rig.data(), 512, false}, writable{rig.data(), 512, true};

  // A write that has nothing to write, a read that has no room: both of no bytes.
  CHECK(rig.run(kBlkTypeOut, 3, {header, writable, status}) == kBlkStatusOk);
  CHECK(rig.length == 0);  // 2.7.8.2: the status is not all that lies before it
  CHECK(rig.run(kBlkTypeIn, 3, {header, readable, status}) == kBlkStatusOk);
  CHECK(rig.length == 1);
  CHECK(rig.run(kBlkTypeGetId, 0, {header, readable, status}) == kBlkStatusOk);
  CHECK(rig.length == 1);
  // Segments that the device may only write are none.
  for (uint32_t type : {kBlkTypeDiscard, kBlkTypeWriteZeroes})
    CHECK(rig.run(type, 0, {header, {rig.data(), 16, true}, status}) == kBlkStatusIoError);
  // A header that the device may only write is none.
  const Segment writable_header{rig.header(), 16, true};
  CHECK(rig.run(kBlkTypeFlush, 0, {writable_header, status}) == kBlkStatusIoError);
  CHECK(rig.run(kBlkTypeIn, 3, {writable_header, {rig.data(), 496, true}, status}) == kBlkStatusIoError);
  CHECK(rig.run(kBlkTypeIn, 3, {{rig.header(), 8, false}, {rig.header() + 8, 8, true}, status}) ==
        kBlkStatusIoError);
  // Readable ones after writable ones (2.7.4.2), the data or the header itself.
  CHECK(rig.run(kBlkTypeOut, 3, {header, status, readable}) == kBlkStatusIoError);
  CHECK(rig.run(kBlkTypeIn, 3, {writable, header, status}) == kBlkStatusIoError);
  CHECK(rig.run(kBlkTypeFlush, 0, {status, header}) == kBlkStatusIoError);

  CHECK((rig.node->bytes(0, kDiskBytes) == before));
  CHECK(rig.node->count(Op::Flush) + rig.node->count(Op::Discard) + rig.node->count(Op::Zeroes) == 0);
  CHECK(rig.transport.reason.empty());
}

TEST_CASE("zero length: requests without data, or with empty buffers wherever they claim to lie") {
  HostileRig rig;
  const auto before = rig.node->bytes(0, kDiskBytes);
  const Segment header{rig.header(), 16, false}, status{rig.status_byte(), 1, true};
  const uint64_t end = kDiskBytes / kBlkSector;
  for (uint32_t type : {kBlkTypeIn, kBlkTypeOut}) {
    const bool writable = type == kBlkTypeIn;
    for (const std::vector<Segment>& segments :
         {std::vector<Segment>{header, status},
          {header, {rig.data(), 0, writable}, status},
          {{0, 0, false}, header, {~0ull, 0, writable}, status, {rig.ram.end(), 0, true}}}) {
      CHECK(rig.run(type, 3, segments) == kBlkStatusOk);
      CHECK(rig.length == 1);
      CHECK(rig.run(type, end, segments) == kBlkStatusOk);  // nothing, at the end
      CHECK(rig.run(type, end + 1, segments) == kBlkStatusIoError);
      CHECK(rig.run(type, ~0ull, segments) == kBlkStatusIoError);
    }
  }
  for (uint32_t type : {kBlkTypeDiscard, kBlkTypeWriteZeroes})
    CHECK(rig.run(type, 0, {header, {rig.data(), 0, false}, status}) == kBlkStatusIoError);
  CHECK(rig.run(kBlkTypeIn, 0, {{rig.header(), 0, false}, status}) == kBlkStatusIoError);
  CHECK((rig.node->bytes(0, kDiskBytes) == before));
  CHECK(rig.transport.reason.empty());

  // Without a byte for the status nobody can be told.
  REQUIRE(rig.queue.add(std::vector<Segment>{header, {rig.status_byte(), 0, true}}));
  rig.kick();
  rig.settle();
  CHECK_FALSE(rig.queue.take());
  CHECK_FALSE(rig.transport.reason.empty());
  CHECK(rig.device->in_flight() == 0);
}

}  // namespace
}  // namespace spindle::virtio
