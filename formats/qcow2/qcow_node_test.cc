// The running image against a byte array, with every shape of image, and against its own check.
#include "formats/qcow2/qcow_node.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "block/test_support/model_check.h"
#include "formats/test_support/qcow_bench.h"

namespace spindle {
namespace {

using test::ModelCheck;
using test::ModelOptions;
using test::QcowBench;

void check_clean(QcowBench& bench, const std::string& path, bool may_leak = false) {
  const CheckReport report = bench.check(path);
  CAPTURE(report.messages.empty() ? std::string() : report.messages.front());
  CHECK(report.corruptions == 0);
  if (!may_leak) CHECK(report.leaks == 0);
}

TEST_CASE("qcow2: random operations leave what a byte array holds, and an image that checks clean") {
  const std::vector<FormatOptions> shapes = {
      {{"cluster_size", "512"}},
      {{"cluster_size", "4096"}, {"refcount_bits", "1"}},
      {{"cluster_size", "65536"}},
      {{"cluster_size", "2097152"}, {"refcount_bits", "64"}},
      {{"cluster_size", "4096"}, {"compat", "0.10"}},
      {{"cluster_size", "16384"}, {"extended_l2", "on"}},
      {{"cluster_size", "65536"}, {"extended_l2", "on"}, {"lazy_refcounts", "on"}},
      {{"cluster_size", "4096"}, {"preallocation", "metadata"}},
  };
  for (const FormatOptions& shape : shapes) {
    for (const char* plan : {"ahead", "merge"}) {
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        QcowBench bench;
        std::string told = plan;
        for (const auto& [key, value] : shape) told += " " + key + "=" + value;
        CAPTURE(told);
        CAPTURE(seed);
        const std::string path = bench.create("a.qcow2", (1400 + seed) * 512, shape);
        FormatOptions options{{"alloc-plan", plan}, {"prealloc-ahead", seed == 1 ? "64M" : "16K"}};
        if (seed == 2) options["l2-cache-size"] = "4K";
        auto node = bench.open(path, options);
        ModelCheck model(*bench.reactor, *node, {.seed = seed, .batches = 60, .resize = seed == 3});
        model.run();
        bench.close(node);
        check_clean(bench, path);
        node = bench.open(path);
        model.check(*node);
        bench.close(node);
      }
    }
  }
}

TEST_CASE("qcow2: each order of metadata gives the same bytes") {
  for (const char* policy : {"ordered", "eager", "none"}) {
    QcowBench bench;
    CAPTURE(policy);
    const std::string path = bench.create("a.qcow2", 1 << 20, {{"cluster_size", "4096"}});
    auto node = bench.open(path, {{"metadata-flush", policy}});
    ModelCheck model(*bench.reactor, *node, {.seed = 9, .batches = 60});
    model.run();
    bench.close(node);
    check_clean(bench, path);
    node = bench.open(path);
    model.check(*node);
    bench.close(node);
  }
}

TEST_CASE("qcow2: a second flush with nothing new behind it writes nothing") {
  QcowBench bench;
  const std::string path = bench.create("a.qcow2", 64 << 20);
  auto node = bench.open(path);
  for (uint64_t i = 0; i < 20; ++i) {
    bench.write(*node, i * 100'000, "data");
    bench.flush(*node);
  }
  const ProtocolCounters before = *node->child()->protocol_counters();
  bench.write(*node, 21 * 100'000, "data");
  bench.flush(*node);
  // Space, counts and zeroes were made ahead: one barrier for an allocation.
  CHECK(node->child()->protocol_counters()->fdatasyncs - before.fdatasyncs == 1);
  const ProtocolCounters after = *node->child()->protocol_counters();
  bench.flush(*node);
  CHECK(node->child()->protocol_counters()->writes == after.writes);
  bench.close(node);
  check_clean(bench, path);
}

TEST_CASE("qcow2: what is closed is as large as its content") {
  QcowBench bench;
  const std::string path = bench.create("a.qcow2", 64 << 20);
  const uint64_t empty = std::filesystem::file_size(path);
  auto node = bench.open(path);
  bench.write(*node, 0, "data");
  bench.close(node);
  CHECK(std::filesystem::file_size(path) <= empty + (3 << 16));
  check_clean(bench, path);
}

TEST_CASE("qcow2: compressed clusters are read back, overwritten and counted") {
  for (const char* type : {"zlib", "zstd"}) {
    QcowBench bench;
    CAPTURE(type);
    const std::string path =
        bench.create("a.qcow2", 1 << 20, {{"cluster_size", "65536"}, {"compression_type", type}});
    auto node = bench.open(path);
    for (uint64_t i = 0; i < 8; ++i) {
      std::string cluster(65536, static_cast<char>('a' + i));
      for (std::size_t at = 0; at < 20000 * (i % 3); ++at)
        cluster[at] = static_cast<char>(at * 7919 >> 3 ^ at);
      const iovec part{cluster.data(), cluster.size()};
      QcowBench::require(bench.reactor->wait(
          node->write(i * 65536, Buffers(std::span(&part, 1)), WriteFlags{.compressed = true})));
    }
    bench.flush(*node);
    CHECK(bench.read(*node, 5 * 65536 + 65000, 3) == "fff");
    bench.write(*node, 5 * 65536 + 100, "new");
    CHECK(bench.read(*node, 5 * 65536 + 65000, 3) == "fff");
    bench.close(node);
    check_clean(bench, path);
    node = bench.open(path);
    CHECK(bench.read(*node, 5 * 65536 + 100, 3) == "new");
    CHECK(bench.read(*node, 7 * 65536 + 65000, 3) == "hhh");
    bench.close(node);
  }
}

}  // namespace
}  // namespace spindle
