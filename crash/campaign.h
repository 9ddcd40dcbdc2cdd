// A campaign: workloads with rising seeds over one subject and one cache mode, explored until a number of
// distinct states has been judged. What `spindle crash explore` and each row of `spindle crash table` are.
//
// Every third seed runs over a medium that loses data as XFS before Linux 5.5 did (RecordingMedium), which a
// subject without growth races does not notice.
//
// The invariants, by name, and which findings break them:
//
//   leaks-only                  every state opens, checks without errors and can be read
//   flushed-is-durable          with the cache on: content is never lost, stale, foreign or torn
//   write-through-durable-at-completion   the same with the cache off
//   toggle-atomic               the same in workloads that turn the cache off and on
//   resize-safe                 nothing at all is wrong in workloads that resize
//   repair-safe                 nothing at all is wrong while check -r or compact is under way
//   no-growth-race              no write at or beyond the end in flight while the file grows
//
// Threading: the calling thread, and those of explore().
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "crash/bad_state.h"
#include "crash/workload.h"

namespace spindle::crash {

struct CampaignOptions {
  std::vector<std::string> workloads;  ///< none: all
  uint64_t seed = 1;
  uint64_t states = 100'000;  ///< distinct ones, at most, and reached unless the workloads run dry
  uint64_t steps = 120;       ///< of a workload
  bool write_back = true;
  Tearing tearing = {};
  unsigned jobs = 1;
  Depth depth = Depth::Full;
  std::atomic<uint64_t>* progress = nullptr;
  const std::atomic<bool>* stop = nullptr;
  /// Told of each history before it is explored, and of each bad state kept, minimised.
  std::function<void(std::string_view workload, uint64_t seed)> on_history = {};
  std::function<void(BadState)> on_bad = {};
};

struct Invariant {
  std::string_view name;
  bool tested = false;
  uint64_t broken = 0;  ///< states, or races
};

struct CampaignResult {
  Exploration total;
  WorkloadCounts counts;
  uint64_t histories = 0;
  uint64_t races = 0;
  std::vector<Invariant> invariants;

  bool clean() const { return total.corrupt == 0 && races == 0; }
};

/// An error where a workload cannot be run at all.
Result<CampaignResult> run_campaign(Reactor& reactor, const Subject& subject, const CampaignOptions& options);

/// The maintenance workloads' names: "repair-leaks", "repair-all", "compact".
std::span<const std::string_view> maintenance_names();
/// What a maintenance job does to the file, on an image that `program` and a power cut have left behind.
/// NotSupported if the subject has no such job, Corrupt if what was left is too damaged for it.
Result<History> record_maintenance(Reactor& reactor, const Subject& subject, std::string_view job,
                                   const WorkloadOptions& options);

}  // namespace spindle::crash
