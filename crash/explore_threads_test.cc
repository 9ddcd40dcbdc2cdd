// Exploring with several threads: the same states and the same verdicts as with one.
#include <doctest/doctest.h>

#include "crash/explore.h"
#include "crash/test_support/toy_format.h"
#include "crash/workload.h"

namespace spindle::crash {
namespace {

TEST_CASE("explore: any number of threads finds the same") {
  auto reactor = std::move(*Reactor::create(64));
  const Subject right = test::toy_subject();
  const Subject wrong = test::toy_subject(test::ToyMutation::CountWithMap);
  for (const Subject& subject : {right, wrong}) {
    const auto history =
        record_program(*reactor, subject, "allocate", {.seed = 3, .steps = 60, .medium = {}});
    REQUIRE(history.has_value());
    std::optional<Exploration> alone;
    for (const unsigned jobs : {1u, 2u, 3u}) {
      std::atomic<uint64_t> progress = 0;
      auto found =
          explore(*history, subject, {.seed = 3, .states = 1500, .jobs = jobs, .progress = &progress});
      REQUIRE(found.has_value());
      CHECK(progress == found->judged);
      if (!alone) {
        alone = std::move(*found);
        CHECK((alone->corrupt != 0) == (subject.name == wrong.name));
        continue;
      }
      CHECK(found->distinct == alone->distinct);
      CHECK(found->judged == alone->judged);
      CHECK(found->clean == alone->clean);
      CHECK(found->leaking == alone->leaking);
      CHECK(found->by_kind == alone->by_kind);
    }
  }
}

}  // namespace
}  // namespace spindle::crash
