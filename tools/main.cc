// spindle: one binary, with subcommands. Each lives in a file of its own and declares itself to the parser.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "image/output.h"
#include "tools/command.h"
#include "vmm/output.h"

namespace {

// "spindle run" if that is where the parser stopped.
std::string command_name(const CLI::App& app) {
  std::string name = app.get_name();
  for (const CLI::App* sub : app.get_subcommands()) name += " " + command_name(*sub);
  return name;
}

// Whether the parser stopped where another subcommand has to follow.
bool wants_subcommand(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  if (!chosen.empty()) return wants_subcommand(*chosen.front());
  return app.get_require_subcommand_min() > 0;
}

// The status for wrong options. Those who stand for QEMU's tools end as these do: 2 is the status of a check
// that found corruption.
int usage_status(const CLI::App& app) {
  const bool as_qemu = app.got_subcommand("img") || app.got_subcommand("io");
  return as_qemu ? spindle::tools::kExitFailed : spindle::tools::kExitUsage;
}

// What `status` becomes if it claims success and what was printed could not be delivered: a verdict that
// nobody has read is none. Those who print to standard output as they go have said so themselves if they
// failed for it, so this speaks for the others, help included.
int status_with_output(const CLI::App& app, int status) {
  if (status != spindle::tools::kExitOk) return status;
  const auto delivered = spindle::image::output_state();
  if (delivered) return status;
  spindle::vmm::say(fmt::format("{}: {}", command_name(app), delivered.error()->message()));
  return usage_status(app);
}

// CLI11's messages may have several lines; ours have one.
std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

// What whoever started us may have left in a state that costs data. False if it cannot be mended.
bool prepare_process() {
  // A write to a reader that has gone, or beyond the file size limit, is an error of that write (EPIPE,
  // EFBIG) and not the end of the process.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  // If standard input, output or error is closed, the next file opened takes its number: messages would be
  // written into a disk image.
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!prepare_process()) return spindle::tools::kExitUsage;  // and there is nowhere to say why
  CLI::App app("A small KVM monitor with emulated disks whose durability can be seen and controlled.",
               "spindle");
  app.set_version_flag("--version", "spindle " SPINDLE_VERSION);
  app.require_subcommand(1);
  spindle::tools::Action action;
  spindle::tools::add_run_command(app, action);
  spindle::tools::add_ctl_command(app, action);
  spindle::tools::add_crash_command(app, action);
  spindle::tools::add_img_command(app, action);
  spindle::tools::add_io_command(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return status_with_output(app, app.exit(error));  // --help, --version
    const std::string name = command_name(app);
    if (const auto unknown = app.remaining(true); wants_subcommand(app) && !unknown.empty()) {
      spindle::vmm::say(
          fmt::format("{}: there is no subcommand {}; see `{} --help`", name, unknown.front(), name));
      return usage_status(app);
    }
    spindle::vmm::say(fmt::format("{}: {}; see `{} --help`", name, one_line(error.what()), name));
    return usage_status(app);
  }
  return status_with_output(app, action());
}
