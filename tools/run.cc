// `spindle run`: boots a Linux kernel with disks. Turns the options into a vmm::Machine, runs it and gives
// its outcome back as exit status. docs/running.md is the user's page.
#include <fmt/format.h>

#include <memory>

#include "block/parse.h"
#include "formats/register_formats.h"
#include "tools/command.h"
#include "vmm/control/commands.h"
#include "vmm/control/server.h"
#include "vmm/machine.h"
#include "vmm/machine_control.h"
#include "vmm/output.h"
#include "vmm/sandbox.h"
#include "vmm/signals.h"

namespace spindle::tools {
namespace {

constexpr const char* kDefaultCommandLine = "console=ttyS0";

struct RunOptions {
  vmm::MachineOptions machine{.command_line = kDefaultCommandLine};
  std::string memory = "512M";
  std::string console = "stdio";
  std::vector<std::string> disks;
  std::string control;  ///< empty: none
  bool no_reboot = false;
  bool no_sandbox = false;
};

int usage_error(const Error& error) {
  vmm::say("spindle run: " + error.message());
  return kExitUsage;
}

// As QEMU's -m: a bare number is MiB.
Result<uint64_t> parse_memory(const std::string& text) {
  const auto bare = parse_number(text);
  const auto bytes = parse_size(bare ? fmt::format("{}M", *bare) : text);
  if (!bytes) return std::unexpected(Error::invalid("memory", text, "not a size; write it like 512M or 2G"));
  return *bytes;
}

// A guest that was stopped by an error goes on when somebody says so, which takes a control socket. With one,
// a full host stops the guest, as in QEMU; without, it is told.
Result<> settle_error_policies(DiskSpec& spec, bool controlled, const std::string& text) {
  if (!spec.write_errors) spec.write_errors = controlled ? ErrorPolicy::StopIfNoSpace : ErrorPolicy::Report;
  const bool stops = spec.read_errors == ErrorPolicy::Stop || *spec.write_errors == ErrorPolicy::Stop ||
                     *spec.write_errors == ErrorPolicy::StopIfNoSpace;
  if (!stops || controlled) return {};
  return std::unexpected(Error::invalid(
      "--disk " + text, "",
      "rerror= and werror= may stop the guest only with --control, by which it can be told to go on"));
}

Result<vmm::MachineOptions> machine_options(const RunOptions& given, const FormatRegistry& registry) {
  vmm::MachineOptions options = given.machine;
  options.reboot = !given.no_reboot;
  auto memory = parse_memory(given.memory);
  if (!memory) return std::unexpected(memory.error());
  options.memory = *memory;
  auto console = vmm::ConsoleOptions::parse(given.console);
  if (!console) return std::unexpected(console.error());
  options.console = *console;
  for (const std::string& text : given.disks) {
    auto spec = parse_disk_spec(text, registry);
    if (!spec) {
      spec.error()->operation = "--disk " + text;  // which of them
      return std::unexpected(spec.error());
    }
    SPINDLE_TRY(settle_error_policies(*spec, !given.control.empty(), text));
    options.disks.push_back(std::move(*spec));
  }
  return options;
}

int run(const RunOptions& given) {
  FormatRegistry registry;
  register_formats(registry);
  auto options = machine_options(given, registry);
  if (!options) return usage_error(*options.error());
  std::vector<std::string> notes;
  if (given.no_sandbox) {
    notes.emplace_back("--no-sandbox: the sandbox is off");
  } else if (!vmm::Sandbox::available()) {
    notes.emplace_back("the sandbox is off: the sanitizers of this build need what it forbids");
  } else if (auto on = vmm::Sandbox::switch_on(); !on) {
    return usage_error(*on.error());
  }
  // Before there are threads: they inherit what is blocked.
  auto signals = vmm::SignalWatcher::create();
  if (!signals) return usage_error(*signals.error());
  auto machine = vmm::Machine::create(std::move(*options), registry, notes);
  if (!machine) return usage_error(*machine.error());
  for (const std::string& note : notes) vmm::say("spindle run: " + note);

  vmm::Machine& running = **machine;
  vmm::MachineControl control(running);
  std::unique_ptr<vmm::ControlServer> server;
  if (!given.control.empty()) {
    auto listening = vmm::ControlServer::listen(given.control);
    if (!listening) return usage_error(*listening.error());
    server = std::move(*listening);
    server->start(vmm::control_greeting(),
                  [&control](std::string_view line) { return vmm::answer_request(line, control); });
  }
  (*signals)->start(
      [&running](std::string name) {
        running.post({vmm::MachineEvent::Kind::Quit, "ended by " + name});
      },
      [&running] {
        running.post({vmm::MachineEvent::Kind::WriteStatistics, {}});
      });
  const vmm::Outcome outcome = running.run();
  signals->reset();  // it may post to the machine until here
  if (outcome.code != 0) vmm::say("spindle run: " + outcome.reason);
  return outcome.code;
}

}  // namespace

void add_run_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Boot a Linux kernel with disks");
  command->add_option("--kernel", options->machine.kernel, "vmlinux (ELF) or bzImage")
      ->required()
      ->type_name("FILE");
  const auto not_empty = [](const std::string& value) {
    return value.empty() ? std::string("needs a file name, not nothing") : std::string();
  };
  command->add_option("--initrd", options->machine.initrd, "initial RAM disk")
      ->type_name("FILE")
      ->check(not_empty);
  command->add_option("--append", options->machine.command_line, "kernel command line")
      ->type_name("CMDLINE")
      ->capture_default_str();
  command->add_option("--cpus", options->machine.cpus, "virtual CPUs, 1 to 8")
      ->type_name("N")
      ->check([](const std::string& value) {
        return parse_number(value) ? std::string()
                                   : fmt::format("\"{}\" is no number of CPUs; give 1 to 8", value);
      })
      ->capture_default_str();
  command->add_option("--memory", options->memory, "guest memory, 64M to 1T; a bare number means MiB")
      ->type_name("SIZE")
      ->capture_default_str();
  command
      ->add_option("--disk", options->disks,
                   "a disk; may be given several times. Without file=, media=cdrom is an empty drive.\n"
                   "file=F[,format=raw][,if=virtio|ide][,readonly=on][,serial=S][,id=ID][,bus=B,unit=U]\n"
                   "[,queues=N][,packed=on][,discard=unmap|ignore][,media=disk|cdrom]\n"
                   "[,cache=writeback|none|writethrough|directsync|unsafe]\n"
                   "and more: docs/disk-options.md")
      ->type_name("SPEC")
      ->take_all()
      ->expected(1);
  command->add_option("--console", options->console, "the serial port: stdio, none or file:F")
      ->type_name("WHERE")
      ->capture_default_str();
  command
      ->add_option("--stats-json", options->machine.stats_file,
                   "write counters to this file at the end, and at each SIGUSR1")
      ->type_name("FILE")
      ->check(not_empty);
  command
      ->add_option("--trace", options->machine.trace_file,
                   "record every disk request, from the start, into this file; docs/tracing.md")
      ->type_name("FILE")
      ->check(not_empty);
  command
      ->add_option("--control", options->control,
                   "listen for commands on this socket, unix:PATH; see `spindle ctl --help`")
      ->type_name("WHERE")
      ->check(not_empty);
  command->add_flag("--no-reboot", options->no_reboot, "a guest reset ends the run with status 0");
  command->add_flag("--no-sandbox", options->no_sandbox,
                    "do not confine the threads by seccomp filters; for finding faults");
  command->footer(
      "Exit status: 0 the guest switched off, or the run was ended by the user; 1 the guest panicked, a "
      "processor\n"
      "failed, or a disk, the statistics or the trace could not be written; 2 something about the options or "
      "this host "
      "must be\n"
      "mended first.\n"
      "Keys on the console: Ctrl-A x quits, Ctrl-A h helps, Ctrl-A Ctrl-A sends Ctrl-A.");
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace spindle::tools
