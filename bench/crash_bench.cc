// States a second, on one core: what judging a power cut's leftovers costs.
//
//   metadata/FORMAT/WORKLOAD   each state is checked, opened and closed
//   full/FORMAT/WORKLOAD       and read back, with each sector held against what it may hold
//
// FORMAT is vdi, through the registry and with the small blocks that `spindle crash table` uses, or toy, a
// format of the tests whose driver costs next to nothing: what is left there is the explorer. Disks span 64
// blocks. The workloads differ in what a state costs: "allocate" flushes often and leaves few operations in
// doubt, "batch" leaves many, "discard" uses space again, "random" writes most of the disk.
#include <benchmark/benchmark.h>

#include <string>
#include <utility>

#include "crash/explore.h"
#include "crash/test_support/toy_format.h"
#include "crash/workload.h"
#include "formats/register_formats.h"

namespace spindle::bench {
namespace {

crash::Subject vdi_subject() {
  FormatRegistry registry;
  register_formats(registry);
  const Format* format = registry.find("vdi");
  if (!format) std::abort();
  auto subject = crash::subject_of(*format, crash::small_blocks(*format, {{"metadata-flush", "ordered"}}));
  if (!subject) std::abort();
  return std::move(*subject);
}

void explore(benchmark::State& state, crash::Subject (*make)(), const char* workload, crash::Depth depth) {
  auto reactor = std::move(*Reactor::create(64));
  const crash::Subject subject = make();
  auto history = crash::record_program(*reactor, subject, workload, {.seed = 1, .steps = 120, .medium = {}});
  if (!history) return state.SkipWithError(history.error()->message().c_str());
  uint64_t states = 0;
  for (auto _ : state) {
    auto found = crash::explore(*history, subject, {.states = 20'000, .depth = depth});
    if (!found || found->corrupt != 0) return state.SkipWithError("the right order lost something");
    states += found->judged;
  }
  state.SetItemsProcessed(static_cast<int64_t>(states));
}

}  // namespace
}  // namespace spindle::bench

int main(int argc, char** argv) {
  using namespace spindle;
  using Make = crash::Subject (*)();
  for (const auto& [depth, depth_name] :
       {std::pair{crash::Depth::Metadata, "metadata/"}, {crash::Depth::Full, "full/"}}) {
    for (const auto& [make, format] : {std::pair{Make(bench::vdi_subject), "vdi/"},
                                       {Make([] { return crash::test::toy_subject(); }), "toy/"}}) {
      for (const char* workload : {"allocate", "batch", "discard", "random"}) {
        benchmark::RegisterBenchmark(
            (std::string(depth_name) + format + workload).c_str(),
            [=](benchmark::State& state) { bench::explore(state, make, workload, depth); })
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
