// Machine: a guest from its options to its end. It makes the parts, wires them, and reacts to what happens:
// the guest switches off, resets or crashes, a vCPU fails, the user quits or wants statistics.
//
// Everything that happens arrives through post(), from any thread, and is dealt with one after the other in
// run(), on the thread that called it. What ends or resets the guest pauses all vCPUs at once, in post()
// already, so that no instruction follows the one that asked for it.
//
// A machine reset: vCPUs pause; PCI functions and chips reset; the disks come to rest and take their
// configured cache modes (D4); the interrupt controllers and processors get their state of power-on; the
// kernel is loaded again; the vCPUs go on.
//
// The end: vCPUs pause and stop; disks drain, flush, close; statistics are written; the console writes out
// what it has and gives the terminal back.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "block/disk_spec.h"
#include "block/format_registry.h"
#include "block/result.h"
#include "block/trace/tracer.h"
#include "vmm/acpi.h"
#include "vmm/boot_file.h"
#include "vmm/chipset.h"
#include "vmm/console.h"
#include "vmm/disk_set.h"
#include "vmm/interrupts.h"
#include "vmm/io_space.h"
#include "vmm/kvm.h"
#include "vmm/memory.h"
#include "vmm/pci_bus.h"
#include "vmm/run_state.h"
#include "vmm/vcpu.h"

namespace spindle::vmm {

struct MachineOptions {
  std::string kernel;
  std::string initrd;  ///< empty: none
  std::string command_line;
  unsigned cpus = 1;
  uint64_t memory = 512ull << 20;
  std::vector<DiskSpec> disks;
  ConsoleOptions console;
  bool reboot = true;      ///< false: a guest reset ends the machine
  std::string stats_file;  ///< empty: none
  std::string trace_file;  ///< recorded into from the start; empty: none
};

/// How a run ended.
struct Outcome {
  int code = 0;        ///< exit status: 0 as wished, 1 otherwise
  std::string reason;  ///< "guest switched off", "vCPU 1: triple fault", ...
};

struct MachineEvent {
  enum class Kind : uint8_t { PowerOff, Reset, Panic, Failure, Quit, IoError, WriteStatistics, Call };
  Kind kind;
  std::string detail;                  ///< for Failure, Quit and IoError: the reason
  struct MachineCall* call = nullptr;  ///< for Call
};

/// Work for the machine's thread that somebody waits for; lives in the waiting caller.
struct MachineCall {
  const std::function<void()>& work;
  enum class State : uint8_t { Waiting, Done, Refused } state = State::Waiting;
};

class Machine {
 public:
  /// Errors are the user's to mend; nothing has run yet. `notes` gets lines the user should see. `registry`
  /// outlives the machine.
  static Result<std::unique_ptr<Machine>> create(MachineOptions options, const FormatRegistry& registry,
                                                 std::vector<std::string>& notes);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  /// Runs the guest to its end. Once.
  Outcome run();
  /// Any thread.
  void post(MachineEvent event);

  /// Runs `work` on the thread of run(), between events, and waits for it. False, and nothing done, once the
  /// machine ends. Any thread but that one.
  bool call(const std::function<void()>& work);

  // ---- from work run by call() ----

  /// Pauses the vCPUs until cont(), and waits until no disk has a request in flight. Resets, signals and the
  /// end are dealt with meanwhile; a reset machine stays stopped.
  void stop();
  void cont();
  /// Pauses the guest for as long as the disk takes to get its new size.
  Result<> resize_disk(const std::string& id, uint64_t bytes);
  /// As DiskSet::change_medium(); warnings are said.
  Result<> change_medium(const std::string& id, const std::string& file, const std::string& format,
                         bool force);
  /// Nothing more than that: what follows is the guest's choice.
  void press_power_button() { chipset_->power_management().press_power_button(); }
  RunState run_state() const { return state_; }
  DiskSet& disks() { return *disks_; }
  trace::Tracer& tracer() { return *tracer_; }

 private:
  explicit Machine(MachineOptions options);
  Result<> build(const FormatRegistry& registry, std::vector<std::string>& notes);
  Result<> make_processors(std::vector<std::string>& notes);
  Result<> take_power_on_state();
  Result<> load_guest();
  Result<> reset_guest();
  Outcome react();
  void carry_out(MachineCall& call);
  void refuse_calls();
  Outcome finish(Outcome outcome);
  static bool ends_or_resets(const MachineEvent& event);
  void pause_all();
  void come_to_rest();
  void stop_for(const std::string& error);
  void resume_all();
  void on_cpu_event(unsigned cpu, const CpuEvent& event);
  nlohmann::ordered_json statistics();
  Result<> write_statistics(const std::optional<Outcome>& outcome);
  MachineEvent next_event();

  MachineOptions options_;
  std::optional<BootFile> kernel_;
  std::optional<BootFile> initrd_;
  AcpiTables acpi_;

  std::mutex events_mutex_;
  std::condition_variable events_changed_;
  std::deque<MachineEvent> events_;
  bool ending_ = false;  // no more calls
  std::condition_variable calls_changed_;

  RunState state_ = RunState::Running;  // only used on the thread of run()

  // In the order in which they depend on each other.
  std::optional<Kvm> kvm_;
  std::unique_ptr<GuestRam> ram_;
  std::unique_ptr<Vm> vm_;
  IoSpace ports_;
  IoSpace memory_space_;
  std::unique_ptr<Console> console_;
  std::unique_ptr<Chipset> chipset_;
  HostBridge host_bridge_;
  IsaBridge isa_bridge_;
  std::unique_ptr<PciBus> bus_;
  std::unique_ptr<DiskSet> disks_;
  std::unique_ptr<trace::Tracer> tracer_;
  std::vector<std::unique_ptr<Vcpu>> cpus_;
  Vm::ChipState chips_at_power_on_;
  std::vector<KvmCpu::State> cpus_at_power_on_;
};

}  // namespace spindle::vmm
