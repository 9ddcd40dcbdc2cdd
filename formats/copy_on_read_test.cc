#include <doctest/doctest.h>

#include "block/filters/copy_on_read_node.h"
#include "block/filters/fault_node.h"
#include "formats/test_support/cow_toy_bench.h"

namespace spindle {
namespace {

using test::CowToy;
using test::CowToyBench;
using test::says;

constexpr uint64_t kSector = CowToy::kSector;

std::string sectors(uint64_t count, char fill) {
  return std::string(count * kSector, fill);
}

struct Bench : CowToyBench {
  std::string base = raw("base.img", 'b');
  std::string top = toy("top.toy", {.backing = "base.img", .format = "raw"});
  std::string disk = "format=toy,copy-on-read=on,file=" + top;

  unsigned depth(Node& node, uint64_t sector) {
    return reactor->wait(node.map(sector * kSector, kSector)).value().depth;
  }
};

TEST_CASE("copy-on-read: what was read comes from the overlay afterwards") {
  Bench bench;
  {
    auto node = bench.opened(bench.disk);
    CHECK(bench.write(*node, 2 * kSector, sectors(1, 't')).has_value());
    CHECK(bench.read(*node, kSector, 3 * kSector) == sectors(1, 'b') + sectors(1, 't') + sectors(1, 'b'));
    for (uint64_t sector = 0; sector < 8; ++sector)
      CHECK(bench.depth(*node, sector) == (sector >= 1 && sector <= 3 ? 0 : 1));
    auto* copier = dynamic_cast<CopyOnReadNode*>(node->child());
    REQUIRE(copier != nullptr);
    CHECK(copier->copied() == 2 * kSector);
    CHECK(bench.read(*node, kSector, 3 * kSector) == sectors(1, 'b') + sectors(1, 't') + sectors(1, 'b'));
    CHECK(copier->copied() == 2 * kSector);
    bench.close(*node);
  }
  auto alone = bench.opened("format=toy,backing=off,file=" + bench.top);
  CHECK(bench.read(*alone, 0, 4 * kSector) ==
        sectors(1, '\0') + sectors(1, 'b') + sectors(1, 't') + sectors(1, 'b'));
  bench.close(*alone);
  auto below = bench.open({.path = bench.base});
  CHECK(bench.read(*below, 0, bench.kSize) == sectors(8, 'b'));
}

TEST_CASE("copy-on-read: scattered buffers get the bytes in order") {
  Bench bench;
  auto node = bench.opened(bench.disk);
  CHECK(bench.write(*node, kSector, sectors(1, 't')).has_value());
  std::string first(100, '?'), second(0, '?'), third(2 * kSector - 100, '?');
  const iovec parts[] = {{first.data(), first.size()}, {second.data(), 0}, {third.data(), third.size()}};
  CHECK(bench.reactor->wait(node->read(0, Buffers(parts))).has_value());
  CHECK(first + third == sectors(1, 'b') + sectors(1, 't'));
  bench.close(*node);
}

TEST_CASE("copy-on-read: a copy that fails fails no read") {
  Bench bench;
  auto node = bench.opened(bench.disk + ",fault=write:1:ENOSPC:always");
  CHECK(bench.read(*node, 0, bench.kSize) == sectors(8, 'b'));
  for (uint64_t sector = 0; sector < 8; ++sector) CHECK(bench.depth(*node, sector) == 1);
  CHECK(!bench.write(*node, 0, sectors(1, 't')).has_value());
  bench.close(*node);
}

TEST_CASE("copy-on-read: after a failed flush nothing is copied") {
  Bench bench;
  auto node = bench.opened(bench.disk);
  node->abandon();
  CHECK(bench.read(*node, 0, bench.kSize) == sectors(8, 'b'));
  CHECK(dynamic_cast<CopyOnReadNode&>(*node->child()).copied() == 0);
  bench.close(*node);
}

TEST_CASE("copy-on-read: a guest's write that meets a copy wins") {
  Bench bench;
  auto file = bench.open({.path = bench.top});
  auto held = std::make_shared<FaultNode>(file, std::vector<FaultRule>{});
  // The copy's write of its data is held; the guest's write to the same place comes meanwhile.
  held->add(parse_fault_rules("write:1:hold").value().front());
  auto base = bench.opened("format=raw,readonly=on,file=" + bench.base);
  struct Below final : OtherFiles {
    std::shared_ptr<Node> node;
    Task<Result<std::shared_ptr<Node>>> open_backing(OtherFile) override { co_return node; }
    Task<Result<std::shared_ptr<Node>>> open_data_file(OtherFile) override {
      co_return std::shared_ptr<Node>();
    }
  } below;
  below.node = base;
  auto toy = bench.reactor->wait(CowToy::open(held, {.idle = {}}, &below));
  REQUIRE(toy.has_value());
  CopyOnReadNode node(*toy);
  std::string seen(kSector, '?'), text = sectors(1, 'g');
  const iovec into{seen.data(), seen.size()}, from{text.data(), text.size()};
  bool read_good = false, write_good = false;
  int ended = 0;
  spawn(node.read(0, Buffers(std::span(&into, 1))), [&](Result<> result) {
    read_good = result.has_value();
    ++ended;
  });
  bench.reactor->run_until([&] { return held->held() == 1; });
  spawn(node.write(0, Buffers(std::span(&from, 1)), {}), [&](Result<> result) {
    write_good = result.has_value();
    ++ended;
  });
  bench.reactor->wait(bench.reactor->sleep(std::chrono::milliseconds(20)));
  CHECK(ended == 0);
  held->clear();
  held->release_all();
  bench.reactor->run_until([&] { return ended == 2; });
  CHECK(read_good);
  CHECK(write_good);
  CHECK(seen == sectors(1, 'b'));
  CHECK(bench.read(node, 0, kSector) == sectors(1, 'g'));
  bench.close(node);
}

TEST_CASE("copy-on-read: disks that cannot be written refuse it") {
  Bench bench;
  CHECK(says(bench.refused(bench.disk + ",readonly=on"), "copy-on-read=on writes"));
  auto spec = parse_disk_spec(bench.disk, bench.formats).value();
  spec.read_only = true;
  CHECK(!bench.reactor->wait(open_graph(*bench.reactor, spec, bench.formats, bench.notes)).has_value());
}

}  // namespace
}  // namespace spindle
