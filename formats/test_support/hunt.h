// Hunting for a state in which an order that is wrong on purpose shows.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "crash/campaign.h"

namespace spindle::test {

struct Hunt {
  std::vector<std::string> workloads;
  uint64_t seeds = 6;
  uint64_t steps = 120;
  uint64_t states = 1500;  ///< of a history
  bool both_cache_modes = true;
  /// A disk of so many bytes with this allocation unit, in place of one of 64 units.
  uint64_t disk_bytes = 0;
  uint64_t block = 0;
};

/// One history over a disk of its own size.
inline std::optional<std::string> caught_in_disk(Reactor& reactor, const crash::Subject& subject,
                                                 const Hunt& hunt, const std::string& workload,
                                                 uint64_t seed) {
  const auto steps = crash::make_program(workload, hunt.disk_bytes, hunt.block, hunt.steps, seed);
  const auto history =
      crash::record_steps(reactor, subject, steps, hunt.disk_bytes, {.seed = seed, .medium = {}});
  REQUIRE_MESSAGE(history.has_value(), (history ? "" : history.error()->message()));
  const auto found = crash::explore(*history, subject, {.seed = seed, .states = hunt.states});
  REQUIRE(found.has_value());
  if (found->corrupt == 0) return std::nullopt;
  return fmt::format("{}, seed {}: {} states, {}", workload, seed, found->corrupt,
                     crash::to_string(found->examples.begin()->first));
}

/// Where and how it shows, in words; nullopt if it does not.
inline std::optional<std::string> caught(Reactor& reactor, const crash::Subject& subject, const Hunt& hunt) {
  for (uint64_t seed = 1; seed <= hunt.seeds; ++seed) {
    for (const std::string& workload : hunt.workloads) {
      if (hunt.disk_bytes != 0) {
        if (auto how = caught_in_disk(reactor, subject, hunt, workload, seed)) return how;
        continue;
      }
      for (const bool write_back : {true, false}) {
        if (!write_back && !hunt.both_cache_modes) continue;
        std::string finding;
        crash::CampaignOptions options{
            .workloads = {workload}, .seed = seed, .states = hunt.states, .steps = hunt.steps};
        options.write_back = write_back;
        options.on_bad = [&](crash::BadState state) {
          if (finding.empty()) finding = fmt::format("{}: {}", crash::to_string(state.kind), state.finding);
        };
        const auto result = crash::run_campaign(reactor, subject, options);
        if (!result) {
          FAIL_CHECK(subject.name << ", " << workload << ": " << result.error()->message());
          return std::nullopt;
        }
        if (!result->clean())
          return fmt::format("{}, {}, seed {}: {}", workload, write_back ? "write-back" : "write-through",
                             seed, finding.empty() ? "a growth race" : finding);
      }
    }
  }
  return std::nullopt;
}

}  // namespace spindle::test
