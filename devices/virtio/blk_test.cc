#include "devices/virtio/blk.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "devices/virtio/blk_test_rig.h"

namespace spindle::virtio {
namespace {

using test::kDiskBytes;
using test::kRingFeatures;
using test::MemoryNode;
using test::Op;
using test::Segment;
using test::TestQueue;
using test::TestRam;
using test::TestRequest;
using test::TestTransport;
using Rig = test::BlkRig;

TEST_CASE("reads and writes move the right bytes and report exactly what was written") {
  Rig rig;
  TestRequest request(rig.ram, 4096);
  CHECK(rig.run(request, kBlkTypeIn, 8) == kBlkStatusOk);
  CHECK(rig.length == 4097);
  CHECK(std::ranges::equal(request.data(), rig.node->bytes(4096, 4096)));

  std::ranges::fill(request.data(), uint8_t{0x5a});
  CHECK(rig.run(request, kBlkTypeOut, 16) == kBlkStatusOk);
  CHECK(rig.length == 1);
  CHECK(std::ranges::all_of(rig.node->bytes(8192, 4096), [](uint8_t b) { return b == 0x5a; }));
  CHECK(rig.disk.counters().write_bytes.value() == 4096);

  CHECK(rig.run(request, kBlkTypeFlush, 0) == kBlkStatusOk);
  CHECK(rig.length == 1);
  CHECK((rig.node->durable(0, kDiskBytes) == rig.node->bytes(0, kDiskBytes)));
}

TEST_CASE("GET_ID gives 20 bytes, or as many as there is room for") {
  Rig rig;
  TestRequest request(rig.ram, 20);
  CHECK(rig.run(request, kBlkTypeGetId, 0) == kBlkStatusOk);
  CHECK(rig.length == 21);
  CHECK(std::string(request.data().begin(), request.data().end()) == "serial-number-012345");
  TestRequest shorter(rig.ram, 6);
  CHECK(rig.run(shorter, kBlkTypeGetId, 0) == kBlkStatusOk);
  CHECK(rig.length == 7);
  TestRequest longer(rig.ram, 32);
  std::ranges::fill(longer.data(), uint8_t{0xee});
  CHECK(rig.run(longer, kBlkTypeGetId, 0) == kBlkStatusOk);
  CHECK(rig.length == 20);  // between these and the status nothing was written
  CHECK(longer.data()[20] == 0xee);
}

TEST_CASE("requests that cannot be carried out are answered, and change nothing") {
  Rig rig;
  const std::vector<uint8_t> before = rig.node->bytes(0, kDiskBytes);
  const uint64_t last = kDiskBytes / 512 - 1;
  TestRequest request(rig.ram, 1024), odd(rig.ram, 513);
  for (uint32_t type : {kBlkTypeIn, kBlkTypeOut}) {
    CHECK(rig.run(request, type, last) == kBlkStatusIoError);
    CHECK(rig.length == (type == kBlkTypeOut ? 1 : 0));  // before the status of a read lies its data
    CHECK(rig.run(request, type, last + 1) == kBlkStatusIoError);
    CHECK(rig.run(request, type, last + 2) == kBlkStatusIoError);
    CHECK(rig.run(request, type, ~0ull) == kBlkStatusIoError);
    CHECK(rig.run(request, type, ~0ull / 512) == kBlkStatusIoError);
    CHECK(rig.run(request, type, ~0ull / 512 + 1) == kBlkStatusIoError);
    CHECK(rig.run(odd, type, 0) == kBlkStatusIoError);
  }
  // SCSI commands, the legacy barrier, lifetime, secure erase, and what nobody knows.
  for (uint32_t type : {2u, 3u, 5u, 10u, 12u, 14u, 0x80000000u, 0x80000001u, ~0u}) {
    CHECK(rig.run(request, type, 0) == kBlkStatusUnsupported);
    CHECK(rig.length == 0);
  }
  CHECK(rig.node->bytes(0, kDiskBytes) == before);
  CHECK(rig.transport.reason.empty());
}

TEST_CASE("a header that is cut short is an error, a chain without a status byte needs a reset") {
  Rig rig;
  TestRequest request(rig.ram, 512);
  request.fill(kBlkTypeFlush, 0);
  const Segment cut_short[] = {{request.header_address(), 15, false}, {request.status_address(), 1, true}};
  rig.queue.add(cut_short);
  rig.kick();
  rig.settle();
  CHECK(rig.queue.take());
  CHECK(request.status() == kBlkStatusIoError);
  CHECK(rig.transport.reason.empty());

  const Segment no_status[] = {{request.header_address(), 16, false}};
  rig.queue.add(no_status);
  rig.kick();
  rig.settle();
  CHECK_FALSE(rig.queue.take());
  CHECK_FALSE(rig.transport.reason.empty());
  // Nothing is served any more until the reset, which ends at once.
  request.fill(kBlkTypeFlush, 0);
  rig.queue.add(request.bare_segments());
  rig.kick();
  rig.settle();
  CHECK(request.status() == 0xff);
  CHECK(rig.device->in_flight() == 0);
}

TEST_CASE("a buffer outside RAM fails its request alone") {
  Rig rig;
  TestRequest request(rig.ram, 512);
  request.fill(kBlkTypeIn, 0);
  const Segment segments[] = {
      {request.header_address(), 16, false}, {rig.ram.end(), 512, true}, {request.status_address(), 1, true}};
  rig.queue.add(segments);
  rig.kick();
  rig.settle();
  CHECK(rig.queue.take());
  CHECK(request.status() == kBlkStatusIoError);
  CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
}

// Cuts [address, address + length) at random places. One byte pieces and empty ones are as good as any.
void cut(std::vector<Segment>& out, std::mt19937& random, uint64_t address, uint32_t length, bool writable) {
  while (length > 0) {
    const uint32_t limit = random() % 3 == 0 ? 4 : length;
    const uint32_t piece = std::min<uint32_t>(length, random() % (limit + 1));
    if (piece == 0 && random() % 4 != 0) continue;
    if (out.size() < 50 || piece == length) {
      out.push_back({address, piece, writable});
    } else {
      out.push_back({address, length, writable});
      return;
    }
    address += piece;
    length -= piece;
  }
}

TEST_CASE("any split of header, data and status works, direct and indirect") {
  Rig rig(kBlkFlush | kBlkConfigWce, CacheMode::Writeback, false, 64);
  std::mt19937 random(20260201);
  std::vector<uint8_t> model = rig.node->bytes(0, kDiskBytes);
  const uint64_t out = rig.ram.allocate(16 + 8192), in = rig.ram.allocate(8192 + 1);
  const uint64_t table = rig.ram.allocate(16 * 256);
  for (int round = 0; round < 3000; ++round) {
    const bool write = random() % 2;
    const uint32_t bytes = 512 * (random() % 16);
    const uint64_t sector = random() % ((kDiskBytes - bytes) / 512 + 1);
    *rig.ram.at<BlkRequestHeader>(out) = {write ? kBlkTypeOut : kBlkTypeIn, 0, sector};
    for (uint32_t i = 0; i < bytes; ++i) rig.ram.at(out)[16 + i] = static_cast<uint8_t>(random());
    // Header and data to write lie next to each other, so a cut may fall anywhere in both; data to read and
    // status likewise.
    std::vector<Segment> segments;
    cut(segments, random, out, 16 + (write ? bytes : 0), false);
    cut(segments, random, in, (write ? 0 : bytes) + 1, true);
    uint8_t* status = rig.ram.at(in) + (write ? 0 : bytes);
    *status = 0xff;
    if (segments.size() <= 64 && random() % 2) {
      REQUIRE(rig.queue.add(segments));
    } else {
      REQUIRE(rig.queue.add_indirect(segments, table));
    }
    rig.kick();
    rig.reactor->run_until([&] { return rig.queue.used_waiting() > 0 || !rig.transport.reason.empty(); });
    REQUIRE(rig.transport.reason.empty());
    const auto used = rig.queue.take();
    REQUIRE(*status == kBlkStatusOk);
    REQUIRE(used->length == (write ? 1 : bytes + 1));
    if (write) {
      std::copy_n(rig.ram.at(out) + 16, bytes, model.begin() + static_cast<long>(sector * 512));
    } else {
      REQUIRE(std::equal(rig.ram.at(in), rig.ram.at(in) + bytes,
                         model.begin() + static_cast<long>(sector * 512)));
    }
  }
  CHECK(rig.node->bytes(0, kDiskBytes) == model);
}

TEST_CASE("a large request has as many segments as the configuration promises") {
  Rig rig(kBlkFlush, CacheMode::Writeback, false, 256);
  REQUIRE(rig.config().seg_max == 254);
  TestRequest request(rig.ram, 254 * 512);
  request.fill(kBlkTypeIn, 1);
  std::vector<Segment> segments{{request.header_address(), 16, false}};
  for (uint32_t i = 0; i < 254; ++i) segments.push_back({request.data_address() + 512 * i, 512, true});
  segments.push_back({request.status_address(), 1, true});
  for (bool indirect : {false, true}) {
    if (indirect) {
      REQUIRE(rig.queue.add_indirect(segments, rig.ram.allocate(16 * 256)));
    } else {
      REQUIRE(rig.queue.add(segments));
    }
    rig.kick();
    rig.settle();
    REQUIRE(rig.queue.take());
    CHECK(request.status() == kBlkStatusOk);
    CHECK(std::ranges::equal(request.data(), rig.node->bytes(512, 254 * 512)));
  }
}

TEST_CASE("read only is offered, and enforced whether acknowledged or not") {
  for (uint64_t acknowledged : {uint64_t{0}, kBlkReadOnly}) {
    Rig rig(kBlkFlush | acknowledged, CacheMode::Writeback, true);
    CHECK((rig.device->features() & kBlkReadOnly));
    TestRequest request(rig.ram, 512);
    CHECK(rig.run(request, kBlkTypeOut, 0) == kBlkStatusIoError);
    CHECK(rig.node->count(Op::Write) == 0);
    CHECK(rig.run(request, kBlkTypeIn, 0) == kBlkStatusOk);
    CHECK(rig.run(request, kBlkTypeFlush, 0) == kBlkStatusOk);
  }
  Rig writable;
  CHECK_FALSE((writable.device->features() & kBlkReadOnly));
}

TEST_CASE("only a subset of the features offered is accepted, with VERSION_1") {
  auto reactor = *Reactor::create();
  Disk disk(std::make_shared<MemoryNode>(*reactor, kDiskBytes), DiskOptions{.id = "d"});
  TestRam ram;
  auto device = *VirtioBlk::create(disk, ram.memory(), {});
  CHECK(device->acknowledge(device->features()));
  CHECK(device->acknowledge(kFeatureVersion1));
  CHECK_FALSE(device->acknowledge(device->features() & ~kFeatureVersion1));
  CHECK_FALSE(device->acknowledge(kFeatureVersion1 | kBlkReadOnly));
  CHECK_FALSE(device->acknowledge(kFeatureVersion1 | 1ull << 63));
  CHECK_FALSE(device->acknowledge(kFeatureVersion1 | kBlkMq));
  CHECK_FALSE(device->acknowledge(kFeatureVersion1 | kFeatureRingPacked));
  auto packed = *VirtioBlk::create(disk, ram.memory(), BlkOptions{.packed = true});
  CHECK(packed->acknowledge(kFeatureVersion1 | kFeatureRingPacked));
  CHECK(packed->acknowledge(kFeatureVersion1));  // the driver's choice
}

TEST_CASE("options that make no device are refused") {
  auto reactor = *Reactor::create();
  Disk disk(std::make_shared<MemoryNode>(*reactor, kDiskBytes), DiskOptions{.id = "d"});
  TestRam ram;
  for (uint32_t size : {0u, 2u, 100u, 2048u}) {
    CHECK_FALSE(VirtioBlk::create(disk, ram.memory(), BlkOptions{.queue_size = size}));
  }
  CHECK_FALSE(VirtioBlk::create(disk, ram.memory(), BlkOptions{.queues = 0}));
  CHECK_FALSE(VirtioBlk::create(disk, ram.memory(), BlkOptions{.queues = 65}));
  auto many = VirtioBlk::create(disk, ram.memory(), BlkOptions{.queues = 4});
  REQUIRE(many);
  CHECK(((*many)->features() & kBlkMq));
}

TEST_CASE("the configuration space describes the disk") {
  Rig rig;
  CHECK(rig.config().capacity == kDiskBytes / 512);
  CHECK(rig.config().blk_size == 512);
  CHECK(rig.config().physical_block_exp == 0);
  CHECK(rig.config().num_queues == 1);
  uint8_t bytes[8];
  std::ranges::fill(bytes, uint8_t{0xee});
  rig.device->read_config(60, bytes);
  CHECK(std::ranges::all_of(bytes, [](uint8_t b) { return b == 0; }));
  rig.device->read_config(~0ull, bytes);
  rig.device->read_config(1, std::span(bytes).first(1));
  CHECK(bytes[0] == kDiskBytes / 512 / 256);

  auto node = std::make_shared<MemoryNode>(*rig.reactor, kDiskBytes);
  node->mutable_facts().request_alignment = 4096;
  Disk disk(node, DiskOptions{.id = "d"});
  auto device = *VirtioBlk::create(disk, rig.ram.memory(), {});
  BlkConfig config;
  device->read_config(0, {reinterpret_cast<uint8_t*>(&config), sizeof config});
  CHECK(config.physical_block_exp == 3);
  CHECK(config.min_io_size == 8);
}

TEST_CASE("a notification before the queue runs, or for a queue that does not exist, does nothing") {
  auto reactor = *Reactor::create();
  auto node = std::make_shared<MemoryNode>(*reactor, kDiskBytes);
  Disk disk(node, DiskOptions{.id = "d"});
  TestRam ram;
  auto device = *VirtioBlk::create(disk, ram.memory(), {});
  TestTransport transport;
  device->connect(transport);
  device->notify(0);
  device->notify(1);
  device->notify(~0u);
  CHECK(device->in_flight() == 0);
  CHECK(transport.reason.empty());
}

TEST_CASE("a queue that starts finds what was made available before") {
  Rig rig;
  TestQueue early(rig.ram, 16, true);
  TestRequest request(rig.ram, 512);
  request.fill(kBlkTypeIn, 0);
  early.add(request.segments(kBlkTypeIn));
  early.publish();
  rig.reactor->wait(rig.device->reset());
  REQUIRE(rig.device->acknowledge(kRingFeatures | kBlkFlush));
  rig.reactor->wait(rig.device->negotiate());
  REQUIRE(rig.device->start_queue(0, early.layout()).empty());
  rig.settle();
  CHECK(early.take());
}

TEST_CASE("a broken ring asks for a reset, and what is in flight still ends") {
  Rig rig;
  TestRequest request(rig.ram, 512);
  rig.node->hold(Op::Read);
  rig.start(request, kBlkTypeIn, 0);
  rig.queue.spoil();
  rig.device->notify(0);
  rig.settle();
  CHECK_FALSE(rig.transport.reason.empty());
  rig.node->release(Op::Read);
  rig.settle();
  CHECK(request.status() == kBlkStatusOk);
  CHECK(rig.queue.take());
}

TEST_CASE("a queue full of requests is answered with one interrupt, and no queue starves the reactor") {
  Rig rig(kBlkFlush, CacheMode::Writeback, false, 256);
  std::vector<TestRequest> requests;
  const uint64_t tables = rig.ram.allocate(256 * 48);
  for (int i = 0; i < 256; ++i) requests.emplace_back(rig.ram, 512);
  for (int i = 0; i < 256; ++i) {
    requests[i].fill(kBlkTypeIn, i);
    REQUIRE(rig.queue.add_indirect(requests[i].segments(kBlkTypeIn), tables + 48 * i));
  }
  rig.queue.want_interrupt(256);
  rig.kick();
  uint16_t largest_turn = 0, before = 0;
  rig.reactor->run_until([&] {
    const uint16_t waiting = rig.queue.used_waiting();
    largest_turn = std::max<uint16_t>(largest_turn, waiting - before);
    before = waiting;
    return waiting == 256;
  });
  CHECK(largest_turn == 128);
  CHECK(rig.transport.interrupts == 1);
  for (int i = 0; i < 256; ++i) CHECK(requests[i].status() == kBlkStatusOk);
}

TEST_CASE("a turn takes no more chains once it has taken 16 MiB") {
  Rig rig(kBlkFlush, CacheMode::Writeback, false, 256);
  constexpr uint32_t kBytes = 1 << 20;
  constexpr int kRequests = 40;
  const uint64_t data = rig.ram.allocate(kBytes);  // all read the same into the same place
  const uint64_t tables = rig.ram.allocate(kRequests * 48);
  std::vector<TestRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    requests.emplace_back(rig.ram, 0);
    requests[i].fill(kBlkTypeIn, 0);
    auto segments = requests[i].segments(kBlkTypeIn);
    segments[1] = {data, kBytes, true};
    REQUIRE(rig.queue.add_indirect(segments, tables + 48 * i));
  }
  rig.kick();
  std::vector<int> turns;
  int before = 0;
  rig.reactor->run_until([&] {
    const int waiting = rig.queue.used_waiting();
    if (waiting != before) turns.push_back(waiting - before);
    before = waiting;
    return waiting == kRequests;
  });
  CHECK(turns == std::vector{16, 16, 8});
  for (TestRequest& request : requests) CHECK(request.status() == kBlkStatusOk);
}

TEST_CASE("random requests complete out of order and match a model") {
  Rig rig;
  std::mt19937 random(7);
  std::vector<TestRequest> requests;
  for (int i = 0; i < 16; ++i) requests.emplace_back(rig.ram, 512);
  for (int round = 0; round < 300; ++round) {
    rig.node->hold(Op::Write);
    rig.node->hold(Op::Read);
    // Every request has a sector of its own, so any order of completion gives the same disk.
    std::vector<uint64_t> sectors(16);
    std::iota(sectors.begin(), sectors.end(), random() % 1000);
    std::vector<bool> writes(16);
    for (int i = 0; i < 16; ++i) {
      writes[i] = random() % 2;
      requests[i].fill(writes[i] ? kBlkTypeOut : kBlkTypeIn, sectors[i]);
      if (writes[i])
        std::ranges::generate(requests[i].data(), [&] { return static_cast<uint8_t>(random()); });
      REQUIRE(rig.queue.add(requests[i].segments(writes[i] ? kBlkTypeOut : kBlkTypeIn)));
    }
    rig.kick();
    rig.settle();
    while (rig.node->release_one(random() % 2 ? Op::Read : Op::Write)) {
    }
    rig.node->release(Op::Read);
    rig.node->release(Op::Write);
    rig.reactor->run_until([&] { return rig.queue.used_waiting() == 16; });
    while (rig.queue.take()) {
    }
    for (int i = 0; i < 16; ++i) {
      REQUIRE(requests[i].status() == kBlkStatusOk);
      REQUIRE(std::ranges::equal(requests[i].data(), rig.node->bytes(sectors[i] * 512, 512)));
    }
  }
}

}  // namespace
}  // namespace spindle::virtio
