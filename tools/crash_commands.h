// What the parts of `spindle crash` share: the options that several have, and how results are told and kept.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "crash/campaign.h"
#include "tools/command.h"

namespace spindle::tools {

/// explore and replay.
void add_crash_explore(CLI::App& crash, Action& action);
/// table.
void add_crash_table(CLI::App& crash, Action& action);

/// Set by a signal: the work ends early, and what was found so far is printed.
extern std::atomic<bool> crash_stop_asked;
void crash_stop_on_signals();

/// Counts on standard error while work is done, if that is a terminal.
class CrashProgress {
 public:
  CrashProgress();
  std::atomic<uint64_t> states{0};

 private:
  std::jthread thread_;
};

/// The options of explore and table.
struct CrashOptions {
  uint64_t seed = 1;
  uint64_t states = 0;
  unsigned jobs = 1;
  uint32_t torn = 512;
  std::string depth = "full";
  std::string json;
  std::string keep_bad;
  uint64_t steps = 120;
  uint64_t qemu = 0;

  crash::Depth depth_wanted() const { return depth == "full" ? crash::Depth::Full : crash::Depth::Metadata; }
};
void add_crash_options(CLI::App& command, CrashOptions& options, uint64_t states, uint64_t qemu);

Result<crash::Subject> subject_by_name(const std::string& format, const FormatOptions& options);
crash::CampaignOptions campaign_options(const CrashOptions& options, bool write_back,
                                        CrashProgress& progress);

/// Keeps bad states where --keep-bad says, or says why not.
class BadKeeper {
 public:
  BadKeeper(const CrashOptions& options, std::string format, FormatOptions format_options)
      : directory_(options.keep_bad), format_(std::move(format)), options_(std::move(format_options)) {}

  void operator()(crash::BadState state);
  /// What was found, a line or two each.
  const std::vector<std::string>& notes() const { return notes_; }
  bool failed() const { return failed_; }

 private:
  std::string directory_;
  std::string format_;
  FormatOptions options_;
  std::vector<std::string> notes_;
  bool failed_ = false;
};

/// "3 lost, 1 torn", or "none".
std::string kinds_of(const crash::Exploration& found);
double flushes_per_thousand(const crash::WorkloadCounts& counts);
nlohmann::json json_of(const crash::CampaignResult& result);
/// Nothing to do for an empty path. False: it could not be written, and that was said.
bool write_crash_json(const std::string& path, const nlohmann::json& json);
/// Says what went wrong; the exit status for it.
int crash_failed(const char* command, const Error& error);

/// If --qemu asks for it: has QEMU's tools judge some states of images with blocks of the size they take, and
/// prints what they say. False: dangerous.
bool tell_qemu(Reactor& reactor, const std::string& format, const FormatOptions& options,
               const CrashOptions& common, bool write_back, nlohmann::json& json);

}  // namespace spindle::tools
