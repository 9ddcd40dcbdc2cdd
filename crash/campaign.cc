#include "crash/campaign.h"

#include <algorithm>

namespace spindle::crash {
namespace {

constexpr uint32_t bit(Corruption kind) {
  return 1u << static_cast<unsigned>(kind);
}
constexpr std::array kContentKinds = {Corruption::Lost, Corruption::Stale, Corruption::Foreign,
                                      Corruption::Torn};
constexpr std::array kStructureKinds = {Corruption::WillNotOpen, Corruption::CheckError,
                                        Corruption::ReadError, Corruption::WrongSize};

template <typename Kinds>
uint64_t states_with(const Exploration& exploration, const Kinds& kinds) {
  // A state may have several; each kind counts it once, and the largest is what is known for sure.
  uint64_t most = 0;
  for (const Corruption kind : kinds)
    most = std::max(most, exploration.by_kind[static_cast<std::size_t>(kind)]);
  return most;
}

bool is_maintenance(std::string_view workload) {
  return std::ranges::find(maintenance_names(), workload) != maintenance_names().end();
}

class Campaign {
 public:
  Campaign(Reactor& reactor, const Subject& subject, const CampaignOptions& options)
      : reactor_(reactor), subject_(subject), options_(options) {
    result_.invariants = {{"leaks-only"},    {"flushed-is-durable"}, {"write-through-durable-at-completion"},
                          {"toggle-atomic"}, {"resize-safe"},        {"repair-safe"},
                          {"no-growth-race"}};
    workloads_ = options.workloads;
    if (workloads_.empty()) {
      workloads_.assign(workload_names().begin(), workload_names().end());
      workloads_.insert(workloads_.end(), maintenance_names().begin(), maintenance_names().end());
    }
  }

  Result<CampaignResult> run() {
    // Rounds of all workloads with one seed. Many in a row that bring next to nothing new end it: all that
    // these workloads can lead to has been seen.
    constexpr unsigned kDryRounds = 20;
    unsigned dry = 0;
    constexpr uint64_t kRounds = 16;
    const uint64_t share = std::max<uint64_t>(500, options_.states / (kRounds * workloads_.size()));
    for (uint64_t seed = options_.seed; !stopped(); ++seed) {
      const uint64_t before = states();
      for (const std::string& workload : workloads_) {
        if (stopped()) break;
        SPINDLE_TRY(run_one(workload, seed, std::min(share, options_.states - states())));
      }
      dry = states() - before < options_.states / 1000 + 1 ? dry + 1 : 0;
      if (dry == kDryRounds) break;
    }
    return std::move(result_);
  }

 private:
  uint64_t states() const { return result_.total.distinct.size(); }
  bool stopped() const {
    return states() >= options_.states || (options_.stop && options_.stop->load(std::memory_order_relaxed));
  }

  Result<> run_one(const std::string& workload, uint64_t seed, uint64_t budget) {
    WorkloadOptions workload_options{
        .seed = seed, .steps = options_.steps, .write_back = options_.write_back, .medium = {}};
    workload_options.medium.loses_racing_data = seed % 3 == 0;
    const bool maintenance = is_maintenance(workload);
    auto history = maintenance
                       ? record_maintenance(reactor_, subject_, workload, workload_options)
                       : record_program(reactor_, subject_, workload, workload_options, &result_.counts);
    if (!history) {
      // What the seed's power cut left may be no work for a job; and a subject need not be able to do
      // everything, unless that alone was asked for.
      if (maintenance && history.error()->kind == ErrorKind::Corrupt) return {};
      if (history.error()->kind == ErrorKind::NotSupported && options_.workloads.size() != 1) return {};
      return std::unexpected(std::move(history.error()));
    }
    if (options_.on_history) options_.on_history(workload, seed);
    ++result_.histories;
    const uint64_t races = history->growth_races().size();
    result_.races += races;
    auto found = explore(*history, subject_,
                         {.tearing = options_.tearing,
                          .seed = seed,
                          .states = budget,
                          .jobs = options_.jobs,
                          .depth = options_.depth,
                          .progress = options_.progress,
                          .stop = options_.stop});
    if (!found) return std::unexpected(std::move(found.error()));
    note_invariants(workload, *found, races);
    if (options_.on_bad) tell_bad(workload, seed, *history, *found);
    found->examples.clear();
    result_.total.add(std::move(*found));
    return {};
  }

  void note_invariants(const std::string& workload, const Exploration& found, uint64_t races) {
    const uint64_t content = states_with(found, kContentKinds);
    const uint64_t structure = states_with(found, kStructureKinds);
    const bool maintenance = is_maintenance(workload);
    const auto test = [&](std::size_t i, uint64_t broken) {
      result_.invariants[i].tested = true;
      result_.invariants[i].broken += broken;
    };
    test(0, structure);
    if (!maintenance) test(options_.write_back ? 1 : 2, content);
    if (workload == "toggle" || workload == "mixed") test(3, content);
    if (workload == "resize" || workload == "mixed") test(4, found.corrupt);
    if (maintenance) test(5, found.corrupt);
    test(6, races);
  }

  // One of each kind in the whole campaign, as small as it can be made.
  void tell_bad(const std::string& workload, uint64_t seed, const History& history,
                const Exploration& found) {
    for (const auto& [kind, examples] : found.examples) {
      if (told_ & bit(kind)) continue;
      told_ |= bit(kind);
      BadState state = minimised_state(reactor_, history, subject_, examples.front().key, kind,
                                       options_.tearing, options_.depth);
      state.cache = options_.write_back ? "writeback" : "writethrough";
      state.workload = workload;
      state.seed = seed;
      options_.on_bad(std::move(state));
    }
  }

  Reactor& reactor_;
  const Subject& subject_;
  const CampaignOptions& options_;
  std::vector<std::string> workloads_;
  uint32_t told_ = 0;
  CampaignResult result_;
};

}  // namespace

Result<CampaignResult> run_campaign(Reactor& reactor, const Subject& subject,
                                    const CampaignOptions& options) {
  return Campaign(reactor, subject, options).run();
}

}  // namespace spindle::crash
