// What the parts of `spindle crash` share.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "crash/other_reader.h"
#include "formats/register_formats.h"
#include "tools/crash_commands.h"
#include "vmm/output.h"

namespace spindle::tools {

using crash::CampaignOptions;
using crash::CampaignResult;
using crash::Corruption;
using vmm::say;

std::atomic<bool> crash_stop_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void crash_stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { crash_stop_asked = true; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

CrashProgress::CrashProgress() {
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
void add_crash_options(CLI::App& command, CrashOptions& common, uint64_t states, uint64_t qemu) {
  common.states = states;
  common.qemu = qemu;
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
  command
      .add_option("--qemu", common.qemu, "States that QEMU's tools judge as well (of each row of a table)")
      ->check(CLI::Range(uint64_t{0}, uint64_t{100'000}))
      ->capture_default_str();
  command.add_option("--json", common.json, "Writes the results to this file too");
  command.add_option("--keep-bad", common.keep_bad,
                     "Keeps one state of each kind of corruption in this directory, minimised");
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

CampaignOptions campaign_options(const CrashOptions& common, bool write_back, CrashProgress& progress) {
  return {.workloads = {},
          .seed = common.seed,
          .states = common.states,
          .steps = common.steps,
          .write_back = write_back,
          .tearing = {.unit = common.torn},
          .jobs = common.jobs,
          .depth = common.depth_wanted(),
          .progress = &progress.states,
          .stop = &crash_stop_asked};
}

void BadKeeper::operator()(crash::BadState state) {
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

bool write_crash_json(const std::string& path, const nlohmann::json& json) {
  if (path.empty()) return true;
  std::ofstream out(path, std::ios::trunc);
  out << json.dump(2) << '\n';
  out.close();
  if (out) return true;
  say(fmt::format("spindle crash: {}: {}", path, std::strerror(errno)));
  return false;
}

int crash_failed(const char* command, const Error& error) {
  say(fmt::format("spindle crash {}: {}", command, error.message()));
  return error.kind == ErrorKind::Io || error.kind == ErrorKind::NoSpace ? kExitFailed : kExitUsage;
}

namespace {

// Images of the size that QEMU's tools take: with the blocks that the format has by itself.
FormatOptions qemu_options(FormatOptions options) {
  for (const char* key : {"block_size", "cluster_size"}) options.erase(key);
  return options;
}

// What QEMU's tools say of some states, as a line; and whether any is dangerous.
Result<crash::OtherCounts> ask_qemu(Reactor& reactor, const std::string& format, const FormatOptions& options,
                                    const CrashOptions& common, bool write_back) {
  auto reader = crash::OtherReader::create();
  if (!reader) return std::unexpected(std::move(reader.error()));
  auto subject = subject_by_name(format, qemu_options(options));
  if (!subject) return std::unexpected(std::move(subject.error()));
  auto block = crash::block_of(reactor, *subject);
  if (!block) return std::unexpected(std::move(block.error()));
  constexpr uint64_t kHistories = 2;
  crash::OtherCounts all;
  for (uint64_t i = 0; i < kHistories && !crash_stop_asked; ++i) {
    auto history = crash::record_program(
        reactor, *subject, i == 0 ? "allocate" : "mixed",
        {.seed = common.seed + i, .steps = common.steps / 2, .write_back = write_back, .medium = {}});
    if (!history) return std::unexpected(std::move(history.error()));
    auto counts = ask_other_reader(**reader, reactor, *history, *subject, format, *block != 0 ? *block : 4096,
                                   {.unit = common.torn}, common.seed + i, (common.qemu + i) / kHistories);
    if (!counts) return counts;
    all.states += counts->states;
    all.dangerous += counts->dangerous;
    if (all.first.empty()) all.first = counts->first;
  }
  return all;
}

}  // namespace

bool tell_qemu(Reactor& reactor, const std::string& format, const FormatOptions& options,
               const CrashOptions& common, bool write_back, nlohmann::json& json) {
  if (common.qemu == 0) return true;
  const auto counts = ask_qemu(reactor, format, options, common, write_back);
  if (!counts) {
    fmt::print("  skipped: QEMU's tools: {}\n", counts.error()->message());
    json["qemu"] = "skipped";
    return true;
  }
  fmt::print("  QEMU's tools: {} states, {} dangerous{}{}\n", counts->states, counts->dangerous,
             counts->first.empty() ? "" : ", the first ", counts->first);
  json["qemu"] = {{"states", counts->states}, {"dangerous", counts->dangerous}};
  return counts->dangerous == 0;
}

}  // namespace spindle::tools
