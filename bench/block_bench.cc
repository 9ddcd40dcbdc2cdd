// What the layers above a medium cost: a task, a chain of tasks, a request through Disk over null, a flush
// decision.
#include <benchmark/benchmark.h>

#include <memory>

#include "block/disk.h"
#include "block/filters/null_node.h"
#include "block/filters/throttle_node.h"

namespace spindle::bench {
namespace {

constexpr int kBatch = 1000;

Task<int> leaf() {
  co_return 1;
}
Task<int> chain(int depth) {
  if (depth == 0) co_return co_await leaf();
  co_return co_await chain(depth - 1);
}

void BM_TaskChainOfFive(benchmark::State& state) {
  auto reactor = std::move(*Reactor::create());
  for (auto _ : state) {
    reactor->wait([]() -> Task<void> {
      for (int i = 0; i < kBatch; ++i) benchmark::DoNotOptimize(co_await chain(4));
    }());
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * kBatch);
}
BENCHMARK(BM_TaskChainOfFive);

struct NullDisk {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create());
  std::shared_ptr<NullNode> node =
      std::make_shared<NullNode>(*reactor, NullNode::Options{.read_zeroes = false});
  Disk disk;
  alignas(4096) uint8_t buffer[4096] = {};
  iovec part{buffer, sizeof buffer};

  explicit NullDisk(CacheMode cache) : disk(node, {.id = "bench", .cache = cache}) {}
};

void disk_write(benchmark::State& state, CacheMode cache) {
  NullDisk bench(cache);
  for (auto _ : state) {
    bench.reactor->wait([](NullDisk& b) -> Task<void> {
      for (int i = 0; i < kBatch; ++i) {
        auto result = co_await b.disk.write(4096, Buffers(std::span(&b.part, 1)));
        benchmark::DoNotOptimize(result);
      }
    }(bench));
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * kBatch);
}
BENCHMARK_CAPTURE(disk_write, write_back, CacheMode::Writeback);
BENCHMARK_CAPTURE(disk_write, write_through, CacheMode::Writethrough);

// What every disk pays for a throttle that limits nothing: the same with and without one.
void disk_read(benchmark::State& state, bool throttle) {
  NullDisk bench(CacheMode::Writeback);
  std::shared_ptr<Node> top = bench.node;
  if (throttle) top = std::make_shared<ThrottleNode>(top, ThrottleLimits{});
  Disk disk(top, {.id = "bench"});
  for (auto _ : state) {
    bench.reactor->wait([](NullDisk& b, Disk& d) -> Task<void> {
      for (int i = 0; i < kBatch; ++i) {
        auto result = co_await d.read(4096, Buffers(std::span(&b.part, 1)));
        benchmark::DoNotOptimize(result);
      }
    }(bench, disk));
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * kBatch);
}
BENCHMARK_CAPTURE(disk_read, bare, false);
BENCHMARK_CAPTURE(disk_read, unlimited_throttle, true);

void BM_ElidedFlush(benchmark::State& state) {
  NullDisk bench(CacheMode::Writeback);
  for (auto _ : state) {
    bench.reactor->wait([](NullDisk& b) -> Task<void> {
      for (int i = 0; i < kBatch; ++i) {
        auto result = co_await b.disk.flush();
        benchmark::DoNotOptimize(result);
      }
    }(bench));
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * kBatch);
}
BENCHMARK(BM_ElidedFlush);

}  // namespace
}  // namespace spindle::bench
