// `spindle crash table`: what each format loses with each order of its metadata.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/register_formats.h"
#include "tools/crash_commands.h"

namespace spindle::tools {
namespace {

using crash::CampaignResult;

struct Row {
  std::string format;
  std::string policy;  ///< "-": the format has no metadata to order
  FormatOptions options;
};

std::vector<Row> rows_of_table() {
  FormatRegistry registry;
  register_formats(registry);
  std::vector<Row> rows;
  for (const char* name : {"raw", "qcow2", "vdi"}) {
    const Format* format = registry.find(name);
    if (!format) continue;
    if (std::ranges::find(format->option_keys, "metadata-flush") == format->option_keys.end()) {
      rows.push_back({name, "-", {}});
      continue;
    }
    for (const char* policy : {"ordered", "eager", "none"})
      rows.push_back({name, policy, crash::small_blocks(*format, {{"metadata-flush", policy}})});
  }
  return rows;
}

int table(const CrashOptions& common) {
  auto reactor = Reactor::create(64);
  if (!reactor) return crash_failed("table", *reactor.error());
  crash_stop_on_signals();
  const auto rows = rows_of_table();
  constexpr std::array kCaches = {"writeback", "writethrough"};
  CrashOptions each = common;
  each.states = std::max<uint64_t>(
      1, (common.states + rows.size() * kCaches.size() - 1) / (rows.size() * kCaches.size()));
  nlohmann::json json = nlohmann::json::array();
  uint64_t all_states = 0, ordered_states = 0, ordered_corrupt = 0;
  std::vector<std::string> notes;
  bool kept = true;
  fmt::print("{:6} {:14} {:12} {:>9} {:9} {:>8} {:>8} {:>9} {:>9}  {}\n", "format", "metadata-flush", "cache",
             "states", "", "leaks", "corrupt", "flushes", "workload", "corruptions");
  fmt::print("{:6} {:14} {:12} {:>9} {:9} {:>8} {:>8} {:>9} {:>9}  {}\n", "", "", "", "", "", "", "",
             "/1000 wr", "ms", "by kind");
  for (const Row& row : rows) {
    auto subject = subject_by_name(row.format, row.options);
    if (!subject) return crash_failed("table", *subject.error());
    for (const char* cache : kCaches) {
      BadKeeper keeper(common, row.format, row.options);
      std::optional<Result<CampaignResult>> result;
      {
        CrashProgress progress;
        auto campaign = campaign_options(each, std::string_view(cache) == "writeback", progress);
        campaign.on_bad = [&](crash::BadState state) { keeper(std::move(state)); };
        result = run_campaign(**reactor, *subject, campaign);
      }
      if (!*result) return crash_failed("table", *result->error());
      const auto& total = (*result)->total;
      fmt::print("{:6} {:14} {:12} {:>9} {:9} {:>8} {:>8} {:>9.0f} {:>9.1f}  {}\n", row.format, row.policy,
                 cache, total.distinct.size(), total.complete() ? "complete" : "sampled", total.leaking,
                 total.corrupt, flushes_per_thousand((*result)->counts), (*result)->counts.seconds * 1000,
                 kinds_of(total));
      std::fflush(stdout);
      all_states += total.distinct.size();
      const bool promised = !(row.policy == "eager" || row.policy == "none");
      if (promised) ordered_states += total.distinct.size();
      if (promised) ordered_corrupt += total.corrupt + (*result)->races;
      for (const std::string& note : keeper.notes())
        notes.push_back(fmt::format("{} {} {}: {}", row.format, row.policy, cache, note));
      auto entry = json_of(**result);
      const bool safe = tell_qemu(**reactor, row.format, row.options, common,
                                  std::string_view(cache) == "writeback", entry);
      if (promised && !safe) ++ordered_corrupt;
      entry.update({{"format", row.format}, {"metadata_flush", row.policy}, {"cache", cache}});
      json.push_back(std::move(entry));
      kept &= !keeper.failed();
      if (crash_stop_asked) break;
    }
    if (crash_stop_asked) break;
  }
  for (const std::string& note : notes) fmt::print("  {}\n", note);
  fmt::print("{} distinct states in all; where order is promised: {} states, {} corrupt\n", all_states,
             ordered_states, ordered_corrupt);
  if (!write_crash_json(common.json, json) || !kept) return kExitUsage;
  return ordered_corrupt == 0 ? kExitOk : kExitFailed;
}

}  // namespace

void add_crash_table(CLI::App& crash, Action& action) {
  auto common = std::make_shared<CrashOptions>();
  CLI::App* command =
      crash.add_subcommand("table", "What each format loses with each order of its metadata, as a table");
  add_crash_options(*command, *common, 400'000, 6);
  command->footer(
      "Exit status: 0 no corruption where order is promised, 1 corruption there, 2 it cannot be done.");
  command->callback([&action, common] { action = [common] { return table(*common); }; });
}

}  // namespace spindle::tools
