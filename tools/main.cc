// spindle: one binary, with subcommands. Each lives in a file of its own and declares itself to the parser.
#include <fmt/format.h>

#include "tools/command.h"

namespace {

// "spindle run" if that is where the parser stopped.
std::string command_name(const CLI::App& app) {
  std::string name = app.get_name();
  for (const CLI::App* sub : app.get_subcommands()) name += " " + sub->get_name();
  return name;
}

// CLI11's messages may have several lines; ours have one.
std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("A small KVM monitor with emulated disks whose durability can be seen and controlled.",
               "spindle");
  app.set_version_flag("--version", "spindle " SPINDLE_VERSION);
  app.require_subcommand(1);
  spindle::tools::Action action;
  spindle::tools::add_run_command(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const std::string name = command_name(app);
    if (const auto unknown = app.remaining(); app.get_subcommands().empty() && !unknown.empty()) {
      fmt::print(stderr, "spindle: there is no subcommand {}; see `spindle --help`\n", unknown.front());
      return spindle::tools::kExitUsage;
    }
    fmt::print(stderr, "{}: {}; see `{} --help`\n", name, one_line(error.what()), name);
    return spindle::tools::kExitUsage;
  }
  return action();
}
