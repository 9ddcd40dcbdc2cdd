// The explorer over the toy format: nothing in its right order, something in each wrong one.
#include "crash/explore.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "crash/test_support/toy_format.h"
#include "crash/workload.h"

namespace spindle::crash {
namespace {

struct Run {
  uint64_t states = 0;
  uint64_t corrupt = 0;
  uint64_t leaking = 0;
  std::string first;
};

Run explore_all(Reactor& reactor, const Subject& subject, std::string_view workload, uint64_t seed,
                bool write_back, uint64_t states) {
  auto history = record_program(reactor, subject, workload,
                                {.seed = seed, .steps = 60, .write_back = write_back, .medium = {}});
  REQUIRE_MESSAGE(history.has_value(), (history ? "" : history.error()->message()));
  CHECK(history->growth_races().empty());
  auto result = explore(*history, subject, {.seed = seed, .states = states});
  REQUIRE(result.has_value());
  Run run{
      .states = result->distinct.size(), .corrupt = result->corrupt, .leaking = result->leaking, .first = {}};
  CHECK(result->clean + result->leaking + result->recovered + result->corrupt == result->judged);
  if (!result->examples.empty()) {
    const BadExample& example = result->examples.begin()->second.front();
    Laboratory laboratory(reactor, *history, subject, {}, Depth::Full);
    laboratory.move_to(example.key.point);
    const Corruption kind = result->examples.begin()->first;
    const Choices small = minimise(laboratory, example.key.choices, kind);
    const Verdict verdict = laboratory.judge(small, true);
    CHECK(verdict.has(kind));
    run.first = verdict.findings.empty() ? "" : verdict.findings.front().text;
  }
  return run;
}

TEST_CASE("explore: the toy's right order loses nothing, in any workload") {
  auto reactor = std::move(*Reactor::create(64));
  const Subject subject = test::toy_subject();
  uint64_t states = 0, leaking = 0;
  for (const std::string_view workload : workload_names()) {
    if (workload == "resize" || workload == "mixed") continue;  // the toy has one size
    for (const bool write_back : {true, false}) {
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        const Run run = explore_all(*reactor, subject, workload, seed, write_back, 3000);
        CAPTURE(workload);
        CAPTURE(write_back);
        CAPTURE(seed);
        CAPTURE(run.first);
        CHECK(run.corrupt == 0);
        states += run.states;
        leaking += run.leaking;
      }
    }
  }
  MESSAGE(states << " distinct states");
  CHECK(states > 20'000);
  CHECK(leaking > 0);
}

TEST_CASE("explore: each wrong order of the toy is found") {
  auto reactor = std::move(*Reactor::create(64));
  std::size_t killed = 0;
  for (const test::ToyMutation mutation : test::kToyMutations) {
    const Subject subject = test::toy_subject(mutation);
    std::string caught;
    for (uint64_t seed = 1; seed <= 3 && caught.empty(); ++seed) {
      for (const std::string_view workload : {"allocate", "discard", "random"}) {
        const Run run = explore_all(*reactor, subject, workload, seed, true, 3000);
        if (run.corrupt != 0) caught = fmt::format("{} seed {}: {}", workload, seed, run.first);
        if (!caught.empty()) break;
      }
    }
    fmt::print("mutation {:20} {}\n", to_string(mutation), caught.empty() ? "SURVIVED" : "caught: " + caught);
    CHECK_MESSAGE(!caught.empty(), to_string(mutation));
    killed += !caught.empty();
  }
  fmt::print("killed {} of {}\n", killed, test::kToyMutations.size());
}

}  // namespace
}  // namespace spindle::crash
