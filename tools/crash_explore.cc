// `spindle crash explore`, `table` and `replay`: the command line of crash/. docs/crash.md is the user's
// page.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "crash/campaign.h"
#include "crash/log_history.h"
#include "formats/register_formats.h"
#include "tools/command.h"
#include "tools/crash_commands.h"
#include "vmm/output.h"

namespace spindle::tools {
namespace {

using crash::CampaignOptions;
using crash::CampaignResult;
using crash::Corruption;
using vmm::say;

std::atomic<bool> stop_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// A signal ends the work early; what was found so far is printed.
void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_asked = true; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// Counts on standard error while work is done, if that is a terminal.
class Progress {
 public:
  Progress() {
    if (!isatty(STDERR_FILENO)) return;
    thread_ = std::jthread([this](const std::stop_token& stopped) {
      std::mutex mutex;
      std::condition_variable_any ended;
      const std::stop_callback wake(stopped, [&] {
        const std::lock_guard hold(mutex);
        ended.notify_all();
      });
      std::unique_lock lock(mutex);
      while (!ended.wait_for(lock, stopped, std::chrono::milliseconds(500),
                             [&] { return stopped.stop_requested(); }))
        fmt::print(stderr, "\r{} states ", states.load(std::memory_order_relaxed));
      fmt::print(stderr, "\r\033[K");
    });
  }
  std::atomic<uint64_t> states{0};

 private:
  std::jthread thread_;
};

struct Common {
  uint64_t seed = 1;
  uint64_t states = 0;
  unsigned jobs = 1;
  uint32_t torn = 512;
  std::string depth = "full";
  std::string json;
  std::string keep_bad;
  uint64_t steps = 120;
};

void add_common(CLI::App& command, Common& common, uint64_t states) {
  common.states = states;
  common.jobs = std::max(1u, std::thread::hardware_concurrency());
  command.add_option("--seed", common.seed, "The first seed; others follow it")->capture_default_str();
  command.add_option("--states", common.states, "Distinct states to judge, in all")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1'000'000'000}))
      ->capture_default_str();
  command.add_option("--jobs", common.jobs, "Threads")->check(CLI::Range(1u, 256u));
  command.add_option("--torn", common.torn, "The medium writes so many bytes at once")
      ->check(CLI::IsMember({512, 4096}))
      ->capture_default_str();
  command.add_option("--depth", common.depth, "metadata: open and check; full: and read everything")
      ->check(CLI::IsMember({"metadata", "full"}))
      ->capture_default_str();
  command.add_option("--steps", common.steps, "What a workload's guest does, in requests")
      ->check(CLI::Range(uint64_t{1}, uint64_t{100'000}))
      ->capture_default_str();
  command.add_option("--json", common.json, "Writes the results to this file too");
  command.add_option("--keep-bad", common.keep_bad,
                     "Keeps one state of each kind of corruption in this directory, minimised");
}

struct ExploreOptions {
  Common common;
  std::string workload;
  std::string log;
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

Result<crash::Subject> subject_by_name(const std::string& format, const FormatOptions& options) {
  FormatRegistry registry;
  register_formats(registry);
  const Format* found = registry.find(format);
  if (!found)
    return std::unexpected(
        Error::invalid("--format", format, "there is no such format; there are " + registry.names()));
  return crash::subject_of(*found, options);
}

crash::Depth depth_of(const Common& common) {
  return common.depth == "full" ? crash::Depth::Full : crash::Depth::Metadata;
}

CampaignOptions campaign_options(const Common& common, bool write_back, Progress& progress) {
  return {.workloads = {},
          .seed = common.seed,
          .states = common.states,
          .steps = common.steps,
          .write_back = write_back,
          .tearing = {.unit = common.torn},
          .jobs = common.jobs,
          .depth = depth_of(common),
          .progress = &progress.states,
          .stop = &stop_asked};
}

// Keeps a bad state, or says why not.
class Keeper {
 public:
  Keeper(const Common& common, std::string format, FormatOptions options)
      : directory_(common.keep_bad), format_(std::move(format)), options_(std::move(options)) {}

  void operator()(crash::BadState state) {
    state.format = format_;
    state.options = options_;
    std::string name = state.format;
    for (const auto& [key, value] : options_) name += "-" + value;
    name += fmt::format("-{}-{}-{}-{}.json", state.cache, state.workload, state.seed, to_string(state.kind));
    std::ranges::replace(name, '/', '_');
    notes_.push_back(fmt::format("{}: {}", to_string(state.kind), state.finding));
    if (directory_.empty()) return;
    std::error_code failed;
    std::filesystem::create_directories(directory_, failed);
    const std::string path = directory_ + "/" + name;
    if (auto saved = save(state, path); !saved) {
      say("spindle crash: " + saved.error()->message());
      failed_ = true;
      return;
    }
    notes_.back() += "\n    kept as " + path;
  }
  const std::vector<std::string>& notes() const { return notes_; }
  bool failed() const { return failed_; }

 private:
  std::string directory_;
  std::string format_;
  FormatOptions options_;
  std::vector<std::string> notes_;
  bool failed_ = false;
};

std::string kinds_of(const crash::Exploration& found) {
  std::string text;
  for (std::size_t i = 0; i < crash::kCorruptions; ++i) {
    if (found.by_kind[i] != 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", found.by_kind[i],
                          to_string(static_cast<Corruption>(i)));
  }
  return text.empty() ? "none" : text;
}

double flushes_per_thousand(const crash::WorkloadCounts& counts) {
  return counts.guest_writes == 0
             ? 0
             : 1000.0 * static_cast<double>(counts.medium_flushes) / static_cast<double>(counts.guest_writes);
}

nlohmann::json json_of(const CampaignResult& result) {
  const auto& total = result.total;
  nlohmann::json json = {{"states", total.distinct.size()},
                         {"judged", total.judged},
                         {"histories", result.histories},
                         {"crash_points", total.points},
                         {"complete", total.complete()},
                         {"clean", total.clean},
                         {"leaks", total.leaking},
                         {"recovered", total.recovered},
                         {"corrupt", total.corrupt},
                         {"growth_races", result.races},
                         {"guest_writes", result.counts.guest_writes},
                         {"flushes_per_1000_writes", flushes_per_thousand(result.counts)},
                         {"workload_seconds", result.counts.seconds},
                         {"explore_seconds", total.seconds}};
  for (std::size_t i = 0; i < crash::kCorruptions; ++i)
    json["corruptions"][std::string(to_string(static_cast<Corruption>(i)))] = total.by_kind[i];
  for (const auto& invariant : result.invariants)
    json["invariants"][std::string(invariant.name)] =
        invariant.tested ? nlohmann::json{{"broken", invariant.broken}} : nlohmann::json("not tested");
  return json;
}

bool write_json(const std::string& path, const nlohmann::json& json) {
  if (path.empty()) return true;
  std::ofstream out(path, std::ios::trunc);
  out << json.dump(2) << '\n';
  out.close();
  if (out) return true;
  say(fmt::format("spindle crash: {}: {}", path, std::strerror(errno)));
  return false;
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

int failed(const char* command, const Error& error) {
  say(fmt::format("spindle crash {}: {}", command, error.message()));
  return error.kind == ErrorKind::Io || error.kind == ErrorKind::NoSpace ? kExitFailed : kExitUsage;
}

// A recorded disk: one history, of which the guest's side is not known.
int explore_log(const ExploreOptions& options, const crash::Subject& subject, Reactor& reactor,
                Keeper& keeper) {
  auto history = crash::history_of_log(options.log);
  if (!history) return failed("explore", *history.error());
  CampaignResult result;
  {
    Progress progress;
    auto found = crash::explore(*history, subject,
                                {.tearing = {.unit = options.common.torn},
                                 .seed = options.common.seed,
                                 .states = options.common.states,
                                 .jobs = options.common.jobs,
                                 .depth = depth_of(options.common),
                                 .progress = &progress.states,
                                 .stop = &stop_asked});
    if (!found) return failed("explore", *found.error());
    result.total = std::move(*found);
  }
  result.histories = 1;
  result.races = history->growth_races().size();
  for (const auto& [kind, examples] : result.total.examples) {
    keeper(minimised_state(reactor, *history, subject, examples.front().key, kind,
                           {.unit = options.common.torn}, depth_of(options.common)));
  }
  result.invariants = {{.name = "leaks-only", .tested = true, .broken = result.total.corrupt},
                       {.name = "no-growth-race", .tested = true, .broken = result.races}};
  print_result(result);
  for (const std::string& note : keeper.notes()) fmt::print("  {}\n", note);
  if (!write_json(options.common.json, json_of(result))) return kExitUsage;
  return result.clean() ? kExitOk : kExitFailed;
}

int explore(const ExploreOptions& options) {
  auto format_options = parse_options(options.options);
  if (!format_options) return failed("explore", *format_options.error());
  auto subject = subject_by_name(options.format, *format_options);
  if (!subject) return failed("explore", *subject.error());
  auto reactor = Reactor::create(64);
  if (!reactor) return failed("explore", *reactor.error());
  stop_on_signals();
  Keeper keeper(options.common, options.format, *format_options);
  if (!options.log.empty()) return explore_log(options, *subject, **reactor, keeper);

  std::optional<Result<CampaignResult>> result;
  {
    Progress progress;
    auto campaign = campaign_options(options.common, options.cache == "writeback", progress);
    if (!options.workload.empty()) campaign.workloads = {options.workload};
    campaign.on_bad = [&](crash::BadState state) { keeper(std::move(state)); };
    result = run_campaign(**reactor, *subject, campaign);
  }
  if (!*result) return failed("explore", *result->error());
  fmt::print("{}, cache={}, torn at {} bytes, {}\n", subject->name, options.cache, options.common.torn,
             options.workload.empty() ? "all workloads" : "workload " + options.workload);
  print_result(**result);
  for (const std::string& note : keeper.notes()) fmt::print("  {}\n", note);
  if (!write_json(options.common.json, json_of(**result)) || keeper.failed()) return kExitUsage;
  return (*result)->clean() ? kExitOk : kExitFailed;
}

struct Row {
  std::string format;
  std::string policy;  ///< "-": the format has no metadata to order
  FormatOptions options;
};

std::vector<Row> rows_of_table() {
  FormatRegistry registry;
  register_formats(registry);
  std::vector<Row> rows;
  for (const char* name : {"raw", "vdi"}) {
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

int table(const Common& common) {
  auto reactor = Reactor::create(64);
  if (!reactor) return failed("table", *reactor.error());
  stop_on_signals();
  const auto rows = rows_of_table();
  constexpr std::array kCaches = {"writeback", "writethrough"};
  Common each = common;
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
    if (!subject) return failed("table", *subject.error());
    for (const char* cache : kCaches) {
      Keeper keeper(common, row.format, row.options);
      std::optional<Result<CampaignResult>> result;
      {
        Progress progress;
        auto campaign = campaign_options(each, std::string_view(cache) == "writeback", progress);
        campaign.on_bad = [&](crash::BadState state) { keeper(std::move(state)); };
        result = run_campaign(**reactor, *subject, campaign);
      }
      if (!*result) return failed("table", *result->error());
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
      entry.update({{"format", row.format}, {"metadata_flush", row.policy}, {"cache", cache}});
      json.push_back(std::move(entry));
      kept &= !keeper.failed();
      if (stop_asked) break;
    }
    if (stop_asked) break;
  }
  for (const std::string& note : notes) fmt::print("  {}\n", note);
  fmt::print("{} distinct states in all; where order is promised: {} states, {} corrupt\n", all_states,
             ordered_states, ordered_corrupt);
  if (!write_json(common.json, json) || !kept) return kExitUsage;
  return ordered_corrupt == 0 ? kExitOk : kExitFailed;
}

int replay(const std::string& path) {
  auto state = crash::load_bad_state(path);
  if (!state) return failed("replay", *state.error());
  auto subject = subject_by_name(state->format, state->options);
  if (!subject) return failed("replay", *subject.error());
  auto reactor = Reactor::create(64);
  if (!reactor) return failed("replay", *reactor.error());
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
  add_common(*command, options->common, 100'000);
  auto* workload =
      command->add_option("--workload", options->workload, "What the guest does; without one, all in turn");
  command->add_option("--log", options->log, "A recorded disk's log instead")->excludes(workload);
  command->add_option("--format", options->format, "The image's format")->capture_default_str();
  command->add_option("-o", options->options, "Options of the format, KEY=VALUE");
  command->add_option("--cache", options->cache, "The guest's write cache: on or off")
      ->check(CLI::IsMember({"writeback", "writethrough"}))
      ->capture_default_str();
  command->footer("Workloads: " + workloads +
                  ".\nExit status: 0 no corruption, 1 corruption was found, 2 it cannot be done as asked.");
  command->callback([&action, options] { action = [options] { return explore(*options); }; });

  auto common = std::make_shared<Common>();
  command =
      crash.add_subcommand("table", "What each format loses with each order of its metadata, as a table");
  add_common(*command, *common, 400'000);
  command->footer(
      "Exit status: 0 no corruption where order is promised, 1 corruption there, 2 it cannot be done.");
  command->callback([&action, common] { action = [common] { return table(*common); }; });

  auto path = std::make_shared<std::string>();
  command = crash.add_subcommand("replay", "Judge a kept bad state again, and explain it");
  command->add_option("BADFILE", *path, "What --keep-bad left")->required();
  command->footer("Exit status: 0 it is no longer bad in that way, 1 it still is, 2 BADFILE cannot be used.");
  command->callback([&action, path] { action = [path] { return replay(*path); }; });
}

}  // namespace spindle::tools
