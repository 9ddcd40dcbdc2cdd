// Exports read as dm-log-writes' replay tools do, entry by entry.
#include "block/record/dm_log_writes.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "block/record/record_node.h"
#include "block/test_support/file_bench.h"
#include "block/test_support/held_node.h"
#include "block/test_support/model_check.h"
#include "block/test_support/recorded.h"

namespace spindle::record {
namespace {

using test::Bytes;
using test::FileBench;

struct Item {
  uint64_t sector = 0, sectors = 0, flags = 0, label_bytes = 0;
  std::string label;
  Bytes data;
};
constexpr uint64_t kFlush = 1, kFua = 2, kDiscard = 4, kMark = 8;

std::vector<Item> read_export(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string sector(512, '\0');
  REQUIRE(in.read(sector.data(), 512));
  uint64_t super[4];
  std::memcpy(super, sector.data(), sizeof super);
  CHECK(super[0] == 0x6a736677736872);
  CHECK(super[1] == 1);
  CHECK(super[3] == 512);
  std::vector<Item> items(super[2]);
  for (Item& item : items) {
    REQUIRE(in.read(sector.data(), 512));
    std::memcpy(&item.sector, sector.data(), 32);
    if (item.flags & kMark) item.label = sector.substr(32, item.label_bytes);
    if (item.flags & (kDiscard | kMark)) continue;
    item.data.resize(item.sectors * 512);
    REQUIRE(
        in.read(reinterpret_cast<char*>(item.data.data()), static_cast<std::streamsize>(item.data.size())));
  }
  CHECK(in.peek() == std::ifstream::traits_type::eof());
  return items;
}

std::shared_ptr<Node> recording(FileBench& bench, std::shared_ptr<Node> child, const std::string& log) {
  auto node = bench.reactor->wait(RecordNode::open(std::move(child), log));
  REQUIRE(node.has_value());
  return *node;
}

TEST_CASE("export: replayed in full it is what the file holds") {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    FileBench bench;
    const std::string path = bench.dir.file("image", 256 << 10), log = bench.dir.file("log"),
                      output = bench.dir.file("out");
    {
      auto before = bench.open({.path = path});
      CHECK(bench.write(*before, 64 << 10, std::string(64 << 10, 'b')).has_value());
      CHECK(bench.reactor->wait(before->close()).has_value());
    }
    auto node = recording(bench, bench.open({.path = path}), log);
    test::ModelCheck model(*bench.reactor, *node, {.seed = seed, .granule = 512});
    model.run();
    CHECK(bench.reactor->wait(node->close()).has_value());
    const auto summary = export_dm_log_writes(log, output);
    REQUIRE_MESSAGE(summary.has_value(), (summary ? "" : summary.error()->message()));
    CHECK(summary->end == LogEnd::Closed);
    CHECK(summary->device_bytes == 256 << 10);
    CHECK(summary->failed + summary->unfinished == 0);
    Bytes device(256 << 10);
    std::vector<bool> loose(device.size());
    std::size_t fua = 0;
    const auto items = read_export(output);
    for (const Item& item : items) {
      const auto at = static_cast<std::ptrdiff_t>(item.sector * 512);
      fua += (item.flags & kFua) != 0;
      if (item.flags & kDiscard) std::fill_n(loose.begin() + at, item.sectors * 512, true);
      std::ranges::copy(item.data, device.begin() + at);
      std::fill_n(loose.begin() + at, item.data.size(), false);
    }
    CHECK(fua > 10);
    CHECK(summary->entries == items.size());
    std::ifstream in(path, std::ios::binary);
    const std::string file((std::istreambuf_iterator<char>(in)), {});
    const Bytes bytes = test::bytes_of(file);
    REQUIRE(bytes.size() == device.size());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i)
      wrong += bytes[i] != device[i] && !(loose[i] && bytes[i] == std::byte{});
    CHECK(wrong == 0);
  }
}

TEST_CASE("export: what was in flight when a flush began comes after it, and what never ended comes last") {
  FileBench bench;
  auto held = std::make_shared<test::HeldNode>(*bench.reactor);
  const std::string log = bench.dir.file("log"), output = bench.dir.file("out");
  auto node = recording(bench, held, log);
  std::array<std::array<uint64_t, 64>, 4> blocks{};
  std::array<iovec, 4> parts{};
  std::array<bool, 4> done{};
  bool flushed = false, failed = false;
  const auto write = [&](std::size_t i) {
    blocks[i][0] = i;
    parts[i] = {blocks[i].data(), 512};
    const auto before = held->held().size();
    spawn(node->write((10 + i) * 512, Buffers(std::span(&parts[i], 1)), {}),
          [&, i](Result<>) { done[i] = true; });
    bench.reactor->run_until([&] { return held->held().size() == before + 1; });
  };
  const auto end = [&](std::size_t i, bool fail = false) {
    held->release(*std::ranges::find_if(held->held(), [&](auto* each) { return each->id == i; }), fail);
    bench.reactor->run_until([&] { return done[i]; });
  };
  write(0);
  write(1);
  write(2);
  end(2);
  end(1);
  spawn(node->flush(), [&](Result<> result) { flushed = result.has_value(); });
  bench.reactor->run_until([&] { return held->held().size() == 2; });
  end(0);
  auto* flush = held->held()[0];
  held->release(flush, false);
  bench.reactor->run_until([&] { return flushed; });
  spawn(node->flush(), [&](Result<> result) { failed = !result.has_value(); });
  bench.reactor->run_until([&] { return held->held().size() == 1; });
  held->release(held->held()[0], true);
  bench.reactor->run_until([&] { return failed; });
  write(3);
  const std::string killed = bench.dir.file("killed");
  std::filesystem::copy_file(log, killed);  // as if the process had been killed now
  end(3, true);
  CHECK(bench.reactor->wait(node->close()).has_value());

  const auto order = [&](const std::string& from, ExportSummary& summary) {
    std::filesystem::remove(output);
    auto exported = export_dm_log_writes(from, output);
    REQUIRE(exported.has_value());
    summary = *exported;
    std::string text;
    for (const Item& item : read_export(output)) {
      if (item.flags & kMark) text = item.label;  // and forget the base
      if (item.flags & kFlush) text += " flush";
      if (item.flags == 0) text += " " + std::to_string(item.sector);
    }
    return text;
  };
  ExportSummary summary;
  CHECK(order(log, summary) == "spindle-base 12 11 flush 10");
  CHECK(summary.failed == 2);
  CHECK(summary.end == LogEnd::Closed);
  CHECK(order(killed, summary) == "spindle-base 12 11 flush 10 13");
  CHECK(summary.unfinished == 1);
  CHECK(summary.end == LogEnd::Cut);
}

TEST_CASE("export: what the format cannot say, or the log cannot mean, is one error, and leaves no file") {
  FileBench bench;
  const std::string output = bench.dir.file("out");
  const auto refused = [&](const std::string& log, std::string_view word) {
    const auto exported = export_dm_log_writes(log, output);
    REQUIRE(!exported.has_value());
    CHECK_MESSAGE(exported.error()->message().find(word) != std::string::npos, exported.error()->message());
    CHECK(!std::filesystem::exists(output));
  };
  const std::string odd = bench.dir.file("odd");
  {
    auto node = recording(bench, bench.open({.path = bench.dir.file("image", 4096)}), odd);
    CHECK(bench.write(*node, 3, "odd").has_value());
    CHECK(bench.reactor->wait(node->close()).has_value());
  }
  refused(odd, "no whole sectors");
  const auto log_of = [&](const char* name, uint64_t size) {
    std::string path = bench.dir.file(name);
    auto writer = bench.reactor->wait(LogWriter::create(*bench.reactor, path, {.size = size}));
    REQUIRE(writer.has_value());
    CHECK(bench.reactor
              ->wait((*writer)->append({.type = EntryType::Submit,
                                        .operation = Operation::WriteZeroes,
                                        .id = 1,
                                        .offset = 0,
                                        .length = 1ull << 60}))
              .has_value());
    CHECK(bench.reactor->wait((*writer)->close()).has_value());
    return path;
  };
  const std::string liar = log_of("liar", 4096);
  refused(liar, "contradicts itself");
  refused(log_of("giant", 1ull << 62), "no size of a disk");
  refused(bench.dir.file("image"), "no log");
  refused(bench.dir.file("nothing"), "No such file");
  const std::string there = bench.dir.file("there", 10);
  const auto exported = export_dm_log_writes(liar, there);
  REQUIRE(!exported.has_value());
  CHECK(exported.error()->kind != ErrorKind::NotFound);
  CHECK(std::filesystem::file_size(there) == 10);
}

TEST_CASE("export: a file that becomes shorter loses what is cut off") {
  FileBench bench;
  const std::string log = bench.dir.file("log"), output = bench.dir.file("out");
  auto node = recording(bench, bench.open({.path = bench.dir.file("image", 8192), .grows = true}), log);
  CHECK(bench.write(*node, 4096, std::string(4096, 'x')).has_value());
  CHECK(bench.reactor->wait(node->resize(5120)).has_value());
  CHECK(bench.reactor->wait(node->resize(16384)).has_value());
  CHECK(bench.reactor->wait(node->close()).has_value());
  const auto summary = export_dm_log_writes(log, output);
  REQUIRE(summary.has_value());
  CHECK(summary->device_bytes == 16384);
  const auto items = read_export(output);
  REQUIRE(items.size() == 3);
  CHECK(items[2].flags == kDiscard);
  CHECK(items[2].sector == 10);
  CHECK(items[2].sectors == 6);
}

}  // namespace
}  // namespace spindle::record
