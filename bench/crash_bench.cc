// States a second, on one core: what judging a power cut's leftovers costs, with open and check alone and
// with everything read back. Over an allocating format of 64 small blocks, the size the explorer works with.
#include <benchmark/benchmark.h>

#include "crash/explore.h"
#include "crash/test_support/toy_format.h"
#include "crash/workload.h"

namespace spindle::bench {
namespace {

crash::History record(Reactor& reactor, const crash::Subject& subject, const char* workload) {
  auto history = crash::record_program(reactor, subject, workload, {.seed = 1, .steps = 120, .medium = {}});
  if (!history) std::abort();
  return std::move(*history);
}

void explore(benchmark::State& state, const char* workload, crash::Depth depth) {
  auto reactor = std::move(*Reactor::create(64));
  const crash::Subject subject = crash::test::toy_subject();
  const crash::History history = record(*reactor, subject, workload);
  uint64_t states = 0;
  for (auto _ : state) {
    auto found = crash::explore(history, subject, {.states = 20'000, .depth = depth});
    if (!found || found->corrupt != 0) return state.SkipWithError("the toy's right order lost something");
    states += found->judged;
  }
  state.SetItemsProcessed(static_cast<int64_t>(states));
}
BENCHMARK_CAPTURE(explore, metadata_allocate, "allocate", crash::Depth::Metadata)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(explore, metadata_discard, "discard", crash::Depth::Metadata)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(explore, full_allocate, "allocate", crash::Depth::Full)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(explore, full_random, "random", crash::Depth::Full)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace spindle::bench
