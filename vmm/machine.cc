#include "vmm/machine.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "vmm/boot_cpu.h"
#include "vmm/layout.h"
#include "vmm/linux_loader.h"
#include "vmm/output.h"
#include "vmm/sandbox.h"
#include "vmm/statistics.h"

namespace spindle::vmm {
namespace {

// Reading these is fine, writing them back would turn the clock of one processor against the others'.
constexpr uint32_t kMsrTimeStampCounter = 0x10, kMsrTscAdjust = 0x3b;

}  // namespace

Machine::Machine(MachineOptions options) : options_(std::move(options)) {}

Machine::~Machine() {
  // The vCPUs first: nothing may run while the rest is taken apart. Disks that run() has not closed (an error
  // in create()) have seen no guest, but their devices must let go of the reactor.
  cpus_.clear();
  if (disks_) (void)disks_->close();
  bus_.reset();
}

Result<std::unique_ptr<Machine>> Machine::create(MachineOptions options, const FormatRegistry& registry,
                                                 std::vector<std::string>& notes) {
  std::unique_ptr<Machine> machine(new Machine(std::move(options)));
  SPINDLE_TRY(machine->build(registry, notes));
  return machine;
}

// Cheap checks of what the user gave come before KVM, so that they can be made anywhere.
Result<> Machine::build(const FormatRegistry& registry, std::vector<std::string>& notes) {
  SPINDLE_TRY(GuestRam::check_size(options_.memory));
  if (options_.cpus < 1 || options_.cpus > kMaxCpus) {
    return std::unexpected(Error::invalid(
        "cpus", "", fmt::format("{} CPUs are not possible; give 1 to {}", options_.cpus, kMaxCpus)));
  }
  if (!options_.stats_file.empty()) SPINDLE_TRY(check_json_file(options_.stats_file));
  auto places = place_disks(options_.disks);
  if (!places) return std::unexpected(places.error());
  auto kernel = BootFile::open(options_.kernel, "kernel");
  if (!kernel) return std::unexpected(kernel.error());
  kernel_ = std::move(*kernel);
  if (!options_.initrd.empty()) {
    auto initrd = BootFile::open(options_.initrd, "initrd");
    if (!initrd) return std::unexpected(initrd.error());
    initrd_ = std::move(*initrd);
  }

  tracer_ = std::make_unique<trace::Tracer>(
      trace::Tracer::Options{.at_start =
                                 [] {
                                   pthread_setname_np(pthread_self(), "trace");
                                   confine_or_end(ThreadRole::Trace);
                                 },
                             .complain = [](const std::string& line) { say("spindle: " + line); }});
  if (!options_.trace_file.empty()) SPINDLE_TRY(tracer_->start(options_.trace_file));

  auto kvm = Kvm::open();
  if (!kvm) return std::unexpected(kvm.error());
  kvm_ = std::move(*kvm);
  SPINDLE_TRY(GuestRam::check_host(options_.memory));
  auto ram = GuestRam::create(options_.memory);
  if (!ram) return std::unexpected(ram.error());
  ram_ = std::move(*ram);
  auto vm = Vm::create(*kvm_);
  if (!vm) return std::unexpected(vm.error());
  vm_ = std::move(*vm);
  SPINDLE_TRY(ram_->attach(*vm_));

  auto console = Console::create(options_.console);
  if (!console) return std::unexpected(console.error());
  console_ = std::move(*console);
  const auto fault = [this](const Error& error) { post({MachineEvent::Kind::Failure, error.message()}); };
  chipset_ = std::make_unique<Chipset>(
      ports_, *console_,
      [this, fault](unsigned gsi, bool level) {
        if (auto set = vm_->set_irq_line(gsi, level); !set) fault(*set.error());
      },
      MachineRequests{.reset =
                          [this] {
                            post({MachineEvent::Kind::Reset, {}});
                          },
                      .power_off =
                          [this] {
                            post({MachineEvent::Kind::PowerOff, {}});
                          },
                      .panicked =
                          [this] {
                            post({MachineEvent::Kind::Panic, {}});
                          }});
  bus_ = std::make_unique<PciBus>(ports_, memory_space_, chipset_->pci_pins());
  SPINDLE_TRY(bus_->add({.device = 0}, host_bridge_));
  SPINDLE_TRY(bus_->add({.device = 1}, isa_bridge_));

  auto disks = DiskSet::open(options_.disks, registry, notes);
  if (!disks) return std::unexpected(disks.error());
  disks_ = std::move(*disks);
  disks_->set_stop_handler([this](std::string error) {
    post({MachineEvent::Kind::IoError, std::move(error)});
  });
  SPINDLE_TRY(disks_->plug({.memory = ram_->memory(),
                            .vm = &*vm_,
                            .bus = *bus_,
                            .chipset = *chipset_,
                            .ports = ports_,
                            .fault = fault}));

  SPINDLE_TRY(make_processors(notes));
  SPINDLE_TRY(take_power_on_state());
  acpi_ = build_acpi_tables(options_.cpus, kAcpiAddress);
  return load_guest();
}

Result<> Machine::make_processors(std::vector<std::string>& notes) {
  auto supported = kvm_->supported_cpuid();
  if (!supported) return std::unexpected(supported.error());
  const unsigned bits = physical_address_bits(*supported);
  const uint64_t top = ram_->memory().regions().back().guest_address + ram_->memory().regions().back().size;
  if (bits < 64 && top > 1ull << bits) {
    return std::unexpected(
        Error::invalid("memory", "",
                       fmt::format("this processor's guests have {} address bits; give less than {} MiB",
                                   bits, ((1ull << bits) - kGiB) / kMiB)));
  }
  const bool hide_xsave = host_is_tcg();
  if (hide_xsave)
    notes.push_back("this host is emulated by QEMU's TCG: XSAVE and AVX are hidden from the guest");
  SPINDLE_TRY(Vcpu::install_kick_signal());
  for (unsigned i = 0; i < options_.cpus; ++i) {
    auto cpu = KvmCpu::create(*vm_, i);
    if (!cpu) return std::unexpected(cpu.error());
    SPINDLE_TRY((*cpu)->set_cpuid(
        make_cpuid(*supported, {.cpu = i,
                                .cpus = options_.cpus,
                                .tsc_deadline = kvm_->extension(KVM_CAP_TSC_DEADLINE_TIMER) > 0,
                                .hide_xsave = hide_xsave})));
    cpus_.push_back(std::make_unique<Vcpu>(std::move(*cpu), ports_, memory_space_,
                                           [this, i](const CpuEvent& event) { on_cpu_event(i, event); }));
  }
  return {};
}

Result<> Machine::take_power_on_state() {
  auto chips = vm_->chip_state();
  if (!chips) return std::unexpected(chips.error());
  chips_at_power_on_ = *chips;
  auto msrs = kvm_->msr_indices();
  if (!msrs) return std::unexpected(msrs.error());
  std::erase(*msrs, kMsrTimeStampCounter);
  std::erase(*msrs, kMsrTscAdjust);
  for (auto& cpu : cpus_) {
    auto state = cpu->cpu().state(*msrs);
    if (!state) return std::unexpected(state.error());
    cpus_at_power_on_.push_back(std::move(*state));
  }
  return {};
}

// Firmware's work, at power-on and after each reset.
Result<> Machine::load_guest() {
  std::memcpy(ram_->memory().at(acpi_.address, acpi_.bytes.size()), acpi_.bytes.data(), acpi_.bytes.size());
  SPINDLE_TRY(bus_->assign_resources());
  auto entry = load_linux({.kernel = &*kernel_,
                           .initrd = initrd_ ? &*initrd_ : nullptr,
                           .command_line = options_.command_line,
                           .rsdp_address = acpi_.rsdp_address},
                          *ram_);
  if (!entry) return std::unexpected(entry.error());
  return enter_long_mode(cpus_.front()->cpu(), *ram_, *entry);
}

void Machine::pause_all() {
  for (auto& cpu : cpus_) cpu->request_pause();
}

// What only looks at the machine, or waits for its turn, leaves the guest running.
bool Machine::ends_or_resets(const MachineEvent& event) {
  return event.kind != MachineEvent::Kind::WriteStatistics && event.kind != MachineEvent::Kind::Call;
}

// Pausing and queueing are one step to resume_all(): between the two it would let vCPUs run on that the event
// needs paused.
void Machine::post(MachineEvent event) {
  {
    std::lock_guard lock(events_mutex_);
    if (ends_or_resets(event)) pause_all();
    events_.push_back(std::move(event));
  }
  events_changed_.notify_one();
}

bool Machine::call(const std::function<void()>& work) {
  MachineCall call{.work = work};
  std::unique_lock lock(events_mutex_);
  if (ending_) return false;
  events_.push_back({.kind = MachineEvent::Kind::Call, .detail = {}, .call = &call});
  events_changed_.notify_one();
  calls_changed_.wait(lock, [&call] { return call.state != MachineCall::State::Waiting; });
  return call.state == MachineCall::State::Done;
}

void Machine::carry_out(MachineCall& call) {
  call.work();
  {
    std::lock_guard lock(events_mutex_);
    call.state = MachineCall::State::Done;
  }
  calls_changed_.notify_all();
}

void Machine::refuse_calls() {
  {
    std::lock_guard lock(events_mutex_);
    ending_ = true;
    for (const MachineEvent& event : events_) {
      if (event.call) event.call->state = MachineCall::State::Refused;
    }
    std::erase_if(events_, [](const MachineEvent& event) { return event.call != nullptr; });
  }
  calls_changed_.notify_all();
}

void Machine::come_to_rest() {
  pause_all();
  for (auto& cpu : cpus_) cpu->wait_paused();
  disks_->quiesce();
}

void Machine::stop() {
  trace::mark(0, "stop");
  if (state_ == RunState::Running) state_ = RunState::Paused;
  come_to_rest();
}

// The vCPUs are paused since the event came. Several requests may have met the error, each with an event.
void Machine::stop_for(const std::string& error) {
  const bool told = state_ == RunState::IoError;
  if (!told) trace::mark(0, "stop", "I/O error");
  state_ = RunState::IoError;
  come_to_rest();
  if (!told)
    say("spindle: the guest is stopped: " + error + "; mend it, then let it go on: `spindle ctl SOCK cont`");
}

void Machine::cont() {
  trace::mark(0, "cont");
  state_ = RunState::Running;
  disks_->retry_held();
  disks_->resume();
  resume_all();
}

Result<> Machine::resize_disk(const std::string& id, uint64_t bytes) {
  come_to_rest();
  auto resized = disks_->resize(id, bytes);
  if (state_ == RunState::Running) disks_->resume();
  resume_all();
  return resized;
}

Result<> Machine::change_medium(const std::string& id, const std::string& file, const std::string& format,
                                bool force) {
  std::vector<std::string> warnings;
  auto changed = disks_->change_medium(id, file, format, force, warnings);
  for (const std::string& warning : warnings) say("spindle: " + warning);
  return changed;
}

// Unless the user has stopped the machine, or something has come that pauses the vCPUs for good (or, a reset,
// until it has been dealt with).
void Machine::resume_all() {
  std::lock_guard lock(events_mutex_);
  if (state_ != RunState::Running || std::ranges::any_of(events_, ends_or_resets)) return;
  for (auto& cpu : cpus_) cpu->resume();
}

MachineEvent Machine::next_event() {
  std::unique_lock lock(events_mutex_);
  events_changed_.wait(lock, [this] { return !events_.empty(); });
  MachineEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Machine::on_cpu_event(unsigned cpu, const CpuEvent& event) {
  switch (event.kind) {
    case CpuEventKind::PowerOff:
      return post({MachineEvent::Kind::PowerOff, {}});
    case CpuEventKind::Reset:
      return post({MachineEvent::Kind::Reset, {}});
    case CpuEventKind::Crash:
      return post({MachineEvent::Kind::Panic, {}});
    case CpuEventKind::TripleFault:
    case CpuEventKind::Failure:
      return post({MachineEvent::Kind::Failure, fmt::format("vCPU {}: {}", cpu, event.detail)});
  }
}

Outcome Machine::run() {
  disks_->confine();
  chipset_->start([] {
    pthread_setname_np(pthread_self(), "clock");
    confine_or_end(ThreadRole::Clock);
  });
  console_->start(chipset_->serial(), [this] { post({MachineEvent::Kind::Quit, "quit from the console"}); });
  for (auto& cpu : cpus_) cpu->start();
  confine_or_end(ThreadRole::Main);
  for (auto& cpu : cpus_) cpu->resume();
  return finish(react());
}

Outcome Machine::react() {
  while (true) {
    const MachineEvent event = next_event();
    switch (event.kind) {
      case MachineEvent::Kind::PowerOff:
        return {.code = 0, .reason = "guest switched off"};
      case MachineEvent::Kind::Panic:
        return {.code = 1, .reason = "guest panicked"};
      case MachineEvent::Kind::Failure:
        return {.code = 1, .reason = event.detail};
      case MachineEvent::Kind::Quit:
        return {.code = 0, .reason = event.detail};
      case MachineEvent::Kind::IoError:
        stop_for(event.detail);
        break;
      case MachineEvent::Kind::WriteStatistics:
        if (auto written = write_statistics(std::nullopt); !written)
          say("spindle: statistics: " + written.error()->message());
        break;
      case MachineEvent::Kind::Call:
        carry_out(*event.call);
        break;
      case MachineEvent::Kind::Reset:
        if (!options_.reboot) return {.code = 0, .reason = "guest reset"};
        if (auto reset = reset_guest(); !reset) {
          return {.code = 1, .reason = "machine reset failed: " + reset.error()->message()};
        }
        break;
    }
  }
}

Result<> Machine::reset_guest() {
  trace::mark(0, "machine reset");
  for (auto& cpu : cpus_) cpu->wait_paused();
  bus_->reset();
  for (const Error& error : disks_->settle()) say("spindle: " + error.message());
  chipset_->reset();
  SPINDLE_TRY(vm_->set_chip_state(chips_at_power_on_));
  chipset_->refresh_pins();
  for (size_t i = 0; i < cpus_.size(); ++i) SPINDLE_TRY(cpus_[i]->reset(cpus_at_power_on_[i]));
  SPINDLE_TRY(load_guest());
  // Requests for a reset, and errors, that came before this one took effect are of the guest that is no more.
  {
    std::lock_guard lock(events_mutex_);
    std::erase_if(events_, [](const MachineEvent& event) {
      return event.kind == MachineEvent::Kind::Reset || event.kind == MachineEvent::Kind::IoError;
    });
  }
  if (state_ == RunState::IoError) state_ = RunState::Paused;  // what had waited has ended
  resume_all();
  return {};
}

Outcome Machine::finish(Outcome outcome) {
  refuse_calls();
  pause_all();
  for (auto& cpu : cpus_) cpu->wait_paused();
  for (const Error& error : disks_->close()) {
    if (outcome.code == 0)
      outcome = {.code = 1, .reason = "a disk did not close cleanly: " + error.message()};
    say("spindle: closing a disk: " + error.message());
  }
  const bool traced = tracer_->status().recording || (!options_.trace_file.empty() && !tracer_->idle());
  if (auto stopped = tracer_->stop(); traced && !stopped && outcome.code == 0)
    outcome = {.code = 1, .reason = "the trace could not be written"};  // it has said why
  if (auto written = write_statistics(outcome); !written) {
    say("spindle: statistics: " + written.error()->message());
    if (outcome.code == 0) outcome = {.code = 1, .reason = "the statistics could not be written"};
  }
  console_->stop();
  bus_.reset();
  disks_.reset();
  return outcome;
}

nlohmann::ordered_json Machine::statistics() {
  nlohmann::ordered_json json;
  json["disks"] = disks_->statistics();
  json["memory"]["guest_bytes"] = options_.memory;
  if (auto use = memory_use(GuestRam::kMemfdName)) {
    json["memory"]["guest_resident_bytes"] = use->guest_resident;
    json["memory"]["overhead_bytes"] = use->overhead();
  }
  auto& exits = json["vm_exits"] = nlohmann::ordered_json::array();
  for (const auto& cpu : cpus_) {
    exits.push_back({{"io", cpu->exits().io.value()},
                     {"mmio", cpu->exits().mmio.value()},
                     {"interrupted", cpu->exits().interrupted.value()},
                     {"other", cpu->exits().other.value()}});
  }
  return json;
}

Result<> Machine::write_statistics(const std::optional<Outcome>& outcome) {
  if (options_.stats_file.empty()) return {};
  auto json = statistics();
  if (outcome) json["exit"] = {{"reason", outcome->reason}, {"code", outcome->code}};
  return write_json_file(options_.stats_file, json);
}

}  // namespace spindle::vmm
