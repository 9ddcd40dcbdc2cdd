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
  uint64_t states = 3000;  ///< of a history
  bool both_cache_modes = true;
  bool runs_dry = false;  ///< errors of the workload itself are findings too
};

/// Where and how it shows, in words; nullopt if it does not.
inline std::optional<std::string> caught(Reactor& reactor, const crash::Subject& subject, const Hunt& hunt) {
  for (uint64_t seed = 1; seed <= hunt.seeds; ++seed) {
    for (const std::string& workload : hunt.workloads) {
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
          if (hunt.runs_dry) return fmt::format("{}, seed {}: {}", workload, seed, result.error()->message());
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
