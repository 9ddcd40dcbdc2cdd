// A subcommand of `spindle`: declares its options, and leaves behind what to do when it was chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace spindle::tools {

/// Exit statuses that every subcommand uses alike.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  ///< it was tried and went wrong
inline constexpr int kExitUsage = 2;   ///< the user can mend it: one line on stderr says how

/// What the chosen subcommand runs; returns the exit status.
using Action = std::function<int()>;

void add_run_command(CLI::App& app, Action& action);
void add_ctl_command(CLI::App& app, Action& action);
void add_crash_command(CLI::App& app, Action& action);
void add_img_command(CLI::App& app, Action& action);
void add_io_command(CLI::App& app, Action& action);
/// The same onto an app of their own: what the program is when it was started as qemu-img or qemu-io.
void fill_img_command(CLI::App& img, Action& action);
void fill_io_command(CLI::App& io, Action& action);

}  // namespace spindle::tools
