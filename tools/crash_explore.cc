// `spindle crash explore` and `replay`: the command line of crash/. docs/crash.md is the user's page.
#include <fmt/format.h>

#include "crash/command_judge.h"
#include "crash/log_history.h"
#include "tools/crash_commands.h"

namespace spindle::tools {
namespace {

using crash::CampaignResult;
using crash::Corruption;

struct ExploreOptions {
  CrashOptions common;
  std::string workload;
  std::string log;
  std::string run;
  uint64_t run_states = 20;
  std::string format = "raw";
  std::vector<std::string> options;
  std::string cache = "writeback";
};

Result<FormatOptions> parse_options(const std::vector<std::string>& texts) {
  FormatOptions options;
  for (const std::string& text : texts) {
    // Several may come in one, as qemu-img takes them.
    for (std::size_t from = 0; from <= text.size();) {
      const std::size_t to = std::min(text.find(',', from), text.size());
      const std::string item = text.substr(from, to - from);
      const std::size_t equals = item.find('=');
      if (equals == 0 || equals == std::string::npos)
        return std::unexpected(Error::invalid("-o", item, "an option is KEY=VALUE"));
      options[item.substr(0, equals)] = item.substr(equals + 1);
      from = to + 1;
    }
  }
  return options;
}

std::string rate_of(const crash::Exploration& found) {
  return found.seconds > 0 ? fmt::format("{:.0f}", static_cast<double>(found.judged) / found.seconds) : "-";
}

void print_result(const CampaignResult& result) {
  const auto& total = result.total;
  fmt::print(
      "{} distinct states ({} judged, {} a second) at {} crash points of {} histories: {}\n",
      total.distinct.size(), total.judged, rate_of(total), total.points, result.histories,
      total.complete() ? "complete" : fmt::format("sampled ({} points complete)", total.complete_points));
  fmt::print("clean {}, leaks {}, recovered at open {}, corrupt {}\ncorruptions: {}\n", total.clean,
             total.leaking, total.recovered, total.corrupt, kinds_of(total));
  for (const auto& invariant : result.invariants) {
    fmt::print("  {:36} {}\n", invariant.name,
               !invariant.tested       ? "not tested"
               : invariant.broken == 0 ? "held"
                                       : fmt::format("BROKEN ({})", invariant.broken));
  }
}

// A recorded disk: one history, of which the guest's side is not known.
int explore_log(const ExploreOptions& options, const crash::Subject& subject, Reactor& reactor,
                BadKeeper& keeper) {
  auto history = crash::history_of_log(options.log);
  if (!history) return crash_failed("explore", *history.error());
  CampaignResult result;
  {
    CrashProgress progress;
    auto found = crash::explore(*history, subject,
                                {.tearing = {.unit = options.common.torn},
                                 .seed = options.common.seed,
                                 .states = options.common.states,
                                 .jobs = options.common.jobs,
                                 .depth = options.common.depth_wanted(),
                                 .progress = &progress.states,
                                 .stop = &crash_stop_asked});
    if (!found) return crash_failed("explore", *found.error());
    result.total = std::move(*found);
  }
  result.histories = 1;
  result.races = history->growth_races().size();
  for (const auto& [kind, examples] : result.total.examples) {
    keeper(minimised_state(reactor, *history, subject, examples.front().key, kind,
                           {.unit = options.common.torn}, options.common.depth_wanted()));
  }
  result.invariants = {{.name = "leaks-only", .tested = true, .broken = result.total.corrupt},
                       {.name = "no-growth-race", .tested = true, .broken = result.races}};
  print_result(result);
  for (const std::string& note : keeper.notes()) fmt::print("  {}\n", note);
  nlohmann::json json = json_of(result);
  bool good = result.clean();
  if (!options.run.empty()) {
    const auto counts = crash::ask_command(reactor, *history, subject, {.unit = options.common.torn},
                                           options.common.seed, options.run_states, options.run);
    if (!counts) return crash_failed("explore", *counts.error());
    fmt::print("{}: {} states, {} failed{}{}\n", options.run, counts->states, counts->failed,
               counts->first.empty() ? "" : ", the first ", counts->first);
    json["run"] = {{"states", counts->states}, {"failed", counts->failed}};
    good = good && counts->failed == 0;
  }
  if (!write_crash_json(options.common.json, json)) return kExitUsage;
  return good ? kExitOk : kExitFailed;
}

int explore(const ExploreOptions& options) {
  auto format_options = parse_options(options.options);
  if (!format_options) return crash_failed("explore", *format_options.error());
  auto subject = subject_by_name(options.format, *format_options);
  if (!subject) return crash_failed("explore", *subject.error());
  auto reactor = Reactor::create(64);
  if (!reactor) return crash_failed("explore", *reactor.error());
  crash_stop_on_signals();
  BadKeeper keeper(options.common, options.format, *format_options);
  if (!options.log.empty()) return explore_log(options, *subject, **reactor, keeper);

  std::optional<Result<CampaignResult>> result;
  {
    CrashProgress progress;
    auto campaign = campaign_options(options.common, options.cache == "writeback", progress);
    if (!options.workload.empty()) campaign.workloads = {options.workload};
    campaign.on_bad = [&](crash::BadState state) { keeper(std::move(state)); };
    result = run_campaign(**reactor, *subject, campaign);
  }
  if (!*result) return crash_failed("explore", *result->error());
  fmt::print("{}, cache={}, torn at {} bytes, {}\n", subject->name, options.cache, options.common.torn,
             options.workload.empty() ? "all workloads" : "workload " + options.workload);
  print_result(**result);
  for (const std::string& note : keeper.notes()) fmt::print("  {}\n", note);
  nlohmann::json json = json_of(**result);
  const bool safe = tell_qemu(**reactor, options.format, *format_options, options.common,
                              options.cache == "writeback", json);
  if (!write_crash_json(options.common.json, json) || keeper.failed()) return kExitUsage;
  return (*result)->clean() && safe ? kExitOk : kExitFailed;
}

int replay(const std::string& path) {
  auto state = crash::load_bad_state(path);
  if (!state) return crash_failed("replay", *state.error());
  auto subject = subject_by_name(state->format, state->options);
  if (!subject) return crash_failed("replay", *subject.error());
  auto reactor = Reactor::create(64);
  if (!reactor) return crash_failed("replay", *reactor.error());
  fmt::print("{}", crash::explain(*state));
  fmt::print("Recorded: {}: {}\n", to_string(state->kind), state->finding);
  const crash::Verdict verdict = crash::judge(**reactor, *state, *subject);
  for (const auto& finding : verdict.findings)
    fmt::print("Now: {}: {}\n", to_string(finding.kind), finding.text);
  if (!verdict.corrupt()) fmt::print("Now: {}\n", verdict.leaks != 0 ? "only leaks" : "nothing is wrong");
  return verdict.has(state->kind) ? kExitFailed : kExitOk;
}

}  // namespace

void add_crash_explore(CLI::App& crash, Action& action) {
  std::string workloads;
  for (const auto names : {crash::workload_names(), crash::maintenance_names()}) {
    for (const std::string_view name : names)
      workloads += (workloads.empty() ? "" : ", ") + std::string(name);
  }
  auto options = std::make_shared<ExploreOptions>();
  CLI::App* command = crash.add_subcommand("explore", "Look at all that a power cut may leave of an image");
  add_crash_options(*command, options->common, 100'000, 0);
  auto* workload =
      command->add_option("--workload", options->workload, "What the guest does; without one, all in turn");
  auto* log = command->add_option("--log", options->log, "A recorded disk's log instead")->excludes(workload);
  auto* run =
      command
          ->add_option("--run", options->run,
                       "A shell command that judges some of a log's states: it gets a file that holds the "
                       "guest's disk, and ends with 0 if that is good")
          ->needs(log);
  command->add_option("--run-states", options->run_states, "How many")
      ->needs(run)
      ->check(CLI::Range(uint64_t{1}, uint64_t{100'000}))
      ->capture_default_str();
  command->add_option("--format", options->format, "The image's format")->capture_default_str();
  command->add_option("-o", options->options, "Options of the format, KEY=VALUE");
  command->add_option("--cache", options->cache, "The guest's write cache: on or off")
      ->check(CLI::IsMember({"writeback", "writethrough"}))
      ->capture_default_str();
  command->footer("Workloads: " + workloads +
                  ".\nExit status: 0 no corruption, 1 corruption was found, 2 it cannot be done as asked.");
  command->callback([&action, options] { action = [options] { return explore(*options); }; });

  auto path = std::make_shared<std::string>();
  command = crash.add_subcommand("replay", "Judge a kept bad state again, and explain it");
  command->add_option("BADFILE", *path, "What --keep-bad left")->required();
  command->footer("Exit status: 0 it is no longer bad in that way, 1 it still is, 2 BADFILE cannot be used.");
  command->callback([&action, path] { action = [path] { return replay(*path); }; });
}

}  // namespace spindle::tools
