// spindle: one binary, with subcommands. Each lives in a file of its own and declares itself to the parser.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "image/output.h"
#include "tools/command.h"
#include "tools/persona.h"
#include "tools/word_order.h"
#include "vmm/output.h"

namespace {

using spindle::tools::Persona;

// "spindle run" if that is where the parser stopped.
std::string command_name(const CLI::App& app) {
  std::string name = app.get_name();
  for (const CLI::App* sub : app.get_subcommands()) name += " " + command_name(*sub);
  return name;
}

// The same of a subcommand that the parser has not reached yet.
std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : full_name(*parent) + " " + app.get_name();
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
  if (spindle::tools::persona() != Persona::Spindle) return spindle::tools::kExitFailed;
  const bool as_qemu = app.got_subcommand("img") || app.got_subcommand("io");
  return as_qemu ? spindle::tools::kExitFailed : spindle::tools::kExitUsage;
}

// One line that says what is wrong with the command line, and where there is help; two lines where the
// original has two.
int refuse(const CLI::App& app, const std::string& name, const std::string& what) {
  switch (spindle::tools::persona()) {
    case Persona::Spindle:
      spindle::vmm::say(fmt::format("{}: {}; see `{} --help`", name, what, name));
      break;
    case Persona::QemuImg:
    case Persona::QemuIo:
      spindle::vmm::say(
          fmt::format("{}: {}\nTry '{} --help' for more information", app.get_name(), what, app.get_name()));
      break;
  }
  return usage_status(app);
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

CLI::App* subcommand_of(CLI::App& app, const std::string& name) {
  const auto found = app.get_subcommands([&](const CLI::App* sub) { return sub->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

// The subcommand of img whose options follow `at`, and moves `at` behind its name; null if there is none.
CLI::App* img_command(CLI::App& img, const std::vector<std::string>& words, std::size_t& at) {
  for (; at < words.size() && words[at].starts_with("-"); ++at) {
    if (words[at] == "-T" || words[at] == "--trace") ++at;
  }
  CLI::App* command = at < words.size() ? subcommand_of(img, words[at]) : nullptr;
  ++at;
  return command;
}

// The tool whose options begin at `at`, or null.
CLI::App* tool_of(CLI::App& app, const std::vector<std::string>& words, std::size_t& at) {
  at = 0;
  if (spindle::tools::persona() == Persona::QemuIo) return &app;
  if (spindle::tools::persona() == Persona::QemuImg) return img_command(app, words, at);
  if (words.empty()) return nullptr;
  at = 1;
  if (words[0] == "img") return img_command(*app.get_subcommand("img"), words, at);
  return words[0] == "io" ? app.get_subcommand("io") : nullptr;
}

// CLI11's complaints in the words that scripts may know.
std::string what_is_wrong(const CLI::App& app, const CLI::ParseError& error) {
  const auto unknown = app.remaining(true);
  const bool missing_command = wants_subcommand(app);
  if (spindle::tools::persona() == Persona::Spindle) {
    if (missing_command && !unknown.empty()) return fmt::format("there is no subcommand {}", unknown.front());
    return one_line(error.what());
  }
  if (missing_command)
    return unknown.empty() ? "Not enough arguments" : "Command not found: " + unknown.front();
  const bool extras = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const bool required = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if ((extras || required) && spindle::tools::persona() == Persona::QemuImg)
    return "Expecting one image file name";
  return one_line(error.what());
}

void declare(CLI::App& app, spindle::tools::Action& action) {
  const std::string version = spindle::tools::version_text(spindle::tools::persona());
  switch (spindle::tools::persona()) {
    case Persona::QemuImg:
      app.set_version_flag("-V,--version", version);
      spindle::tools::fill_img_command(app, action);
      return;
    case Persona::QemuIo:
      app.set_version_flag("-V,--version", version);
      spindle::tools::fill_io_command(app, action);
      return;
    case Persona::Spindle:
      break;
  }
  app.set_version_flag("--version", version);
  app.require_subcommand(1);
  spindle::tools::add_run_command(app, action);
  spindle::tools::add_ctl_command(app, action);
  spindle::tools::add_crash_command(app, action);
  spindle::tools::add_img_command(app, action);
  spindle::tools::add_io_command(app, action);
}

const char* description() {
  switch (spindle::tools::persona()) {
    case Persona::QemuImg:
      return "Makes, looks at, checks and converts images, as QEMU's tool of this name does.";
    case Persona::QemuIo:
      return "Reads and writes an image by hand, as QEMU's tool of this name does.";
    case Persona::Spindle:
      break;
  }
  return "A small KVM monitor with emulated disks whose durability can be seen and controlled.";
}

const char* program_name() {
  switch (spindle::tools::persona()) {
    case Persona::QemuImg:
      return "qemu-img";
    case Persona::QemuIo:
      return "qemu-io";
    case Persona::Spindle:
      break;
  }
  return "spindle";
}

}  // namespace

int main(int argc, char** argv) {
  if (!prepare_process()) return spindle::tools::kExitUsage;  // and there is nowhere to say why
  spindle::tools::set_persona(spindle::tools::persona_of(argc > 0 ? argv[0] : ""));
  CLI::App app(description(), program_name());
  spindle::tools::Action action;
  declare(app, action);
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  std::size_t at = 0;
  if (const CLI::App* tool = tool_of(app, words, at)) {
    const auto options = words.begin() + static_cast<std::ptrdiff_t>(at);
    std::vector<std::string> own(options, words.end());
    // The size may begin with a minus. As in qemu-img it is what comes last, whatever it is.
    std::string size;
    const bool has_size = tool->get_name() == "resize" && own.size() > 1 && own.back() != "--help";
    if (has_size) {
      size = std::move(own.back());
      own.pop_back();
    }
    auto ordered = spindle::tools::ordered_words(*tool, own);
    if (ordered && has_size) {
      if (std::ranges::find(*ordered, "--") == ordered->end()) ordered->push_back("--");
      ordered->push_back(std::move(size));
    }
    if (!ordered) {
      refuse(app, full_name(*tool), ordered.error());
      return spindle::tools::kExitFailed;
    }
    words.erase(options, words.end());
    words.insert(words.end(), ordered->begin(), ordered->end());
  }
  try {
    std::ranges::reverse(words);  // as the parser takes them
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return status_with_output(app, app.exit(error));  // --help, --version
    return refuse(app, command_name(app), what_is_wrong(app, error));
  }
  return status_with_output(app, action());
}
