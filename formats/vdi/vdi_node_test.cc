// vdi as guests use it: contents against a model, what a write costs, what a flush costs, and other programs'
// view.
#include "formats/vdi/vdi_node.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>

#include "block/disk.h"
#include "block/test_support/model_check.h"
#include "formats/test_support/vdi_bench.h"

namespace spindle {
namespace {

using test::ModelCheck;
using test::run_command;
using test::VdiBench;

constexpr uint64_t kMiB = 1 << 20;

uint64_t fdatasyncs(Node& node) {
  return node.child()->protocol_counters()->fdatasyncs;
}

TEST_CASE("vdi: random operations agree with a byte array, in every policy and after reopening") {
  for (const char* policy : {"ordered", "eager", "none"}) {
    for (const char* block_size : {"512", "4k", "64k"}) {
      CAPTURE(policy);
      CAPTURE(block_size);
      VdiBench bench;
      const std::string path = bench.create("image", 300'032, {{"block_size", block_size}});
      auto node = bench.open(path, {{"metadata-flush", policy}, {"prealloc-ahead", "16k"}});
      ModelCheck check(*bench.reactor, *node, {.seed = 11, .batches = 100, .granule = 512, .resize = true});
      check.run();
      bench.flush(*node);
      bench.close(node);
      node = bench.open(path);
      check.check(*node);
      bench.close(node);
      const auto report = bench.check(path);
      CHECK(report.corruptions == 0);
      CHECK(report.leaks == 0);
      CHECK_MESSAGE(report.messages.empty(), report.messages.front());
    }
  }
}

TEST_CASE("vdi: the same over O_DIRECT") {
  VdiBench bench;
  const std::string path = bench.create("image", 900'096, {{"block_size", "64k"}});
  auto child = FileNode::open(*bench.reactor, {.path = path, .direct = true, .grows = true});
  if (!child) return test::skipped("O_DIRECT: " + child.error()->message());
  auto node = bench.reactor->wait(vdi::format().open(*child, {}));
  REQUIRE(node.has_value());
  ModelCheck check(*bench.reactor, **node, {.seed = 12, .batches = 60, .granule = 512});
  check.run();
  CHECK(bench.reactor->wait((*node)->close()).has_value());
  auto again = bench.open(path);
  check.check(*again);
  bench.close(again);
}

TEST_CASE("vdi: a write into a fresh block costs what it writes") {
  VdiBench bench;
  const std::string path = bench.create("image", 64 * kMiB);
  auto node = bench.open(path);
  for (uint64_t i = 0; i < 64; ++i) bench.write(*node, i * kMiB + 4096, std::string(4096, 'x'));
  bench.flush(*node);
  bench.close(node);
  const auto blocks = run_command("stat -c %b " + path).output;
  CHECK(std::stoull(blocks) * 512 <= 64 * 8192 + 65'536);
  CHECK(std::filesystem::file_size(path) == bench.header(path).place_offset(64));
}

TEST_CASE("vdi: a guest's flush with allocations behind it costs one flush of the file, the first two") {
  VdiBench bench;
  const std::string path = bench.create("image", 512 * kMiB);
  auto node = bench.open(path);
  uint64_t before = fdatasyncs(*node);
  for (uint64_t round = 0; round < 20; ++round) {
    for (uint64_t i = 0; i < 16; ++i) bench.write(*node, (round * 16 + i) * kMiB, "data");
    bench.flush(*node);
    const uint64_t now = fdatasyncs(*node);
    CHECK(now - before == (round == 0 ? 2 : 1));
    before = now;
  }
  bench.write(*node, 5, "old block");
  bench.flush(*node);
  CHECK(fdatasyncs(*node) - before == 1);
  bench.close(node);
}

TEST_CASE("vdi: eager flushes for each allocation, none never") {
  VdiBench bench;
  for (const char* policy : {"eager", "none"}) {
    const std::string path = bench.create(policy, 64 * kMiB);
    auto node = bench.open(path, {{"metadata-flush", policy}});
    const uint64_t before = fdatasyncs(*node);
    for (uint64_t i = 0; i < 10; ++i) bench.write(*node, i * kMiB, "data");
    CHECK(fdatasyncs(*node) - before == (policy == std::string("eager") ? 10 : 0));
    CHECK(bench.header(path).allocated == 10);
    bench.close(node);
  }
}

TEST_CASE("vdi: what is not flushed is written when the node closes, and the file is as short as it can be") {
  VdiBench bench;
  const std::string path = bench.create("image", 64 * kMiB);
  auto node = bench.open(path);
  bench.write(*node, 5 * kMiB, "five");
  CHECK(std::filesystem::file_size(path) > bench.header(path).place_offset(1));
  bench.close(node);
  CHECK(std::filesystem::file_size(path) == bench.header(path).place_offset(1));
  CHECK(bench.header(path).allocated == 1);
  node = bench.open(path);
  CHECK(bench.read(*node, 5 * kMiB, 4) == "five");
  bench.close(node);
}

TEST_CASE("vdi: opening and reading changes nothing") {
  VdiBench bench;
  const std::string path = bench.create("image", 64 * kMiB);
  auto node = bench.open(path);
  bench.write(*node, 5 * kMiB, "five");
  bench.close(node);
  const auto before = run_command("md5sum " + path).output;
  node = bench.open(path);
  CHECK(bench.read(*node, 5 * kMiB, 4) == "five");
  bench.flush(*node);
  bench.close(node);
  CHECK(run_command("md5sum " + path).output == before);
}

TEST_CASE("vdi: after a failed flush nothing is written any more, also not at close (D6)") {
  VdiBench bench;
  const std::string path = bench.create("image", 64 * kMiB);
  auto child = bench.file(path);
  auto opened = bench.reactor->wait(VdiNode::open(child, {}));
  REQUIRE(opened.has_value());
  std::shared_ptr<Node> node = *opened;
  bench.write(*node, 3 * kMiB, "lost");
  node->abandon();
  const auto flushed = bench.reactor->wait(node->flush());
  REQUIRE(!flushed.has_value());
  CHECK(flushed.error()->kind == ErrorKind::FlushFailed);
  const auto before = run_command("md5sum " + path).output;
  CHECK(bench.read(*node, 3 * kMiB, 4) == "lost");
  bench.close(node);
  CHECK(run_command("md5sum " + path).output == before);
}

TEST_CASE("vdi: what an interrupted run left behind is used again and never shown") {
  VdiBench bench;
  const std::string path = bench.create("image", 8 * kMiB, {{"block_size", "64k"}});
  {
    auto node = bench.open(path);
    for (uint64_t i = 0; i < 8; ++i) bench.write(*node, i << 16, std::string(1 << 16, '#'));
    bench.close(node);
    // Entries 2 and 3 are lost, and the file is longer than all entries say.
    auto file = bench.file(path);
    const auto header = bench.header(path);
    bench.write(*file, header.map_offset + 8, std::string(8, '\xff'));
    REQUIRE(bench.reactor->wait(file->resize(header.place_offset(12))).has_value());
    bench.write(*file, header.place_offset(8), std::string(4 << 16, '!'));
    VdiBench::require(bench.reactor->wait(file->close()));
  }
  CHECK(bench.check(path).leaks == 6);
  auto node = bench.open(path);
  CHECK(bench.read(*node, 2 << 16, 4) == std::string(4, '\0'));
  for (uint64_t i = 20; i < 30; ++i) bench.write(*node, i << 16, "new");
  for (uint64_t i = 20; i < 30; ++i)
    CHECK(bench.read(*node, i << 16, 1 << 16) == "new" + std::string(65'533, '\0'));
  bench.flush(*node);
  bench.close(node);
  const auto report = bench.check(path);
  CHECK(report.corruptions == 0);
  CHECK(report.leaks <= 2);
}

TEST_CASE("vdi: QEMU reads what we wrote, finds nothing wrong with it, and we read what QEMU wrote") {
  if (!test::have_program("qemu-io")) return test::skipped("qemu-io is not installed");
  VdiBench bench;
  for (const char* type : {"off", "on"}) {
    const std::string path = bench.create(std::string("ours-") + type, 20 * kMiB, {{"static", type}});
    auto node = bench.open(path);
    bench.write(*node, 7 * kMiB - 512, std::string(1024, '\x07'));
    bench.write(*node, 19 * kMiB, std::string(512, '\x13'));
    bench.close(node);
    CHECK(run_command("qemu-img check -f vdi " + path).status == 0);
    const auto read = run_command(
        fmt::format("qemu-io -f vdi -c 'read -P 7 {} 1024' -c 'read -P 19 {} 512' -c 'read -P 0 0 7339520' "
                    "-c 'write -P 4 1M 2M' -c 'write -P 5 10M 64k' {}",
                    7 * kMiB - 512, 19 * kMiB, path));
    CHECK_MESSAGE(read.output.find("verification failed") == std::string::npos, read.output);
    CHECK(read.status == 0);
    node = bench.open(path);
    CHECK(bench.read(*node, kMiB, 2 * kMiB) == std::string(2 * kMiB, '\x04'));
    CHECK(bench.read(*node, 10 * kMiB, 65'536) == std::string(65'536, '\x05'));
    CHECK(bench.read(*node, 7 * kMiB, 512) == std::string(512, '\x07'));
    bench.close(node);
  }
  const std::string theirs = bench.dir.file("theirs");
  REQUIRE(run_command("qemu-img create -f vdi " + theirs + " 20M").status == 0);
  auto node = bench.open(theirs);
  CHECK(node->size() == 20 * kMiB);
  ModelCheck check(*bench.reactor, *node, {.seed = 3, .batches = 30, .granule = 512});
  check.run();
  bench.close(node);
  CHECK(run_command("qemu-img check -f vdi " + theirs).status == 0);
  const std::string raw = bench.dir.file("raw");
  REQUIRE(run_command("qemu-img convert -f vdi -O raw " + theirs + " " + raw).status == 0);
  auto flat = bench.file(raw);
  check.check(*flat);
}

}  // namespace
}  // namespace spindle
