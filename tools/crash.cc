// `spindle crash`, and its export: works with the logs of disks that were recorded (`--disk ...,record=F`).
// docs/recording.md is the user's page. What explores is in crash_explore.cc.
#include <fmt/format.h>

#include "block/record/dm_log_writes.h"
#include "tools/command.h"
#include "tools/crash_commands.h"
#include "vmm/output.h"

namespace spindle::tools {
namespace {

struct ExportOptions {
  std::string log;
  std::string output;
};

int export_log(const ExportOptions& options) {
  const auto done = record::export_dm_log_writes(options.log, options.output);
  if (!done) {
    vmm::say("spindle crash export: " + done.error()->message());
    return done.error()->kind == ErrorKind::Io || done.error()->kind == ErrorKind::NoSpace ? kExitFailed
                                                                                           : kExitUsage;
  }
  if (done->end == record::LogEnd::Cut)
    vmm::say(
        fmt::format("spindle crash export: {} was not ended in order: what is exported is what came before",
                    options.log));
  fmt::print(
      "{} entries: {} writes, {} flushes; left out: {} that failed; at the end: {} that never completed\n"
      "replay onto a device of {} bytes of zeroes, or more\n",
      done->entries, done->writes, done->flushes, done->failed, done->unfinished, done->device_bytes);
  return std::fflush(stdout) == 0 ? kExitOk : kExitFailed;
}

}  // namespace

void add_crash_command(CLI::App& app, Action& action) {
  CLI::App* crash =
      app.add_subcommand("crash", "What power cuts may leave of an image, and the logs of recorded disks");
  crash->require_subcommand(1);
  auto options = std::make_shared<ExportOptions>();
  CLI::App* command =
      crash->add_subcommand("export", "Write a log in the format of Linux's dm-log-writes target");
  command->footer(
      "LOG is what `spindle run --disk ...,record=LOG` wrote. OUTPUT must not exist.\n"
      "Exit status: 0 done, 1 it went wrong, 2 LOG or OUTPUT cannot be used.");
  command->add_option("LOG", options->log, "The log")->required();
  command->add_option("OUTPUT", options->output, "The file to make")->required();
  command->callback([&action, options] { action = [options] { return export_log(*options); }; });
  add_crash_explore(*crash, action);
  add_crash_table(*crash, action);
}

}  // namespace spindle::tools
