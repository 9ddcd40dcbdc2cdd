// Vcpu: a thread that runs one virtual CPU, and what is done with its exits.
//
// The way of an exit: KvmCpu::run() returns, handle_exit() looks at the reason, IoSpace finds the device's
// IoHandler. That is all. The interrupt controllers and the timer live in the kernel and cause no exits here.
//
// The machine moves a vCPU between three states, Paused (as it starts), Running and Stopped (the thread
// ends). A request wakes the thread wherever it is: in the guest or blocked in the kernel by a signal, just
// before entering by KVM's immediate_exit flag, and in a parked access (devices/bus.h) by that access's kick.
// A paused vCPU has completed the instruction whose access it handled, or is parked in it.
//
// Threading: public methods are for any thread, the vCPU's own included, except those that say otherwise.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "block/counters.h"
#include "vmm/io_space.h"
#include "vmm/kvm.h"

namespace spindle::vmm {

/// Why a vCPU cannot or does not want to go on.
enum class CpuEventKind : uint8_t {
  TripleFault,  ///< the guest's processor shut down
  Failure,      ///< KVM could not run it
  PowerOff,     ///< KVM's own system events
  Reset,
  Crash,
};
struct CpuEvent {
  CpuEventKind kind;
  std::string detail;  ///< a sentence for the user
};

struct ExitCounters {
  Counter io, mmio, interrupted, other;
};

class Vcpu {
 public:
  /// `report` is called by the vCPU's thread, which pauses itself after it.
  Vcpu(std::unique_ptr<KvmCpu> cpu, const IoSpace& ports, const IoSpace& memory,
       std::function<void(CpuEvent)> report);
  /// Stops the thread.
  ~Vcpu();
  Vcpu(const Vcpu&) = delete;
  Vcpu& operator=(const Vcpu&) = delete;

  /// Interrupts KVM_RUN, or any system call that blocks. Its handler does nothing.
  static constexpr int kKickSignal = SIGUSR2;
  /// Must have run once in the process before any vCPU starts.
  static Result<> install_kick_signal();

  /// Starts the thread, paused.
  void start();
  void request_pause();
  /// Not from the vCPU's own thread.
  void wait_paused();
  void resume();

  /// Puts the processor back to `state`. Only while paused; a parked access is forgotten.
  Result<> reset(const KvmCpu::State& state);
  KvmCpu& cpu() { return *cpu_; }
  const ExitCounters& exits() const { return exits_; }

 private:
  enum class Phase : uint8_t { Paused, Running, Stopped };

  void request(Phase wanted);
  void main();
  bool wait_until_wanted(std::unique_lock<std::mutex>& lock);
  void run();
  void handle_exit();
  void handle_io();
  void handle_mmio();
  void park(std::shared_ptr<ParkedAccess> access);
  void end_with(CpuEventKind kind, std::string detail);

  std::unique_ptr<KvmCpu> cpu_;
  const IoSpace& ports_;
  const IoSpace& memory_;
  std::function<void(CpuEvent)> report_;
  ExitCounters exits_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Phase wanted_ = Phase::Paused;
  Phase actual_ = Phase::Running;  // until the thread has arrived
  bool forget_parked_ = false;
  std::shared_ptr<ParkedAccess> parked_;
  std::thread thread_;
};

}  // namespace spindle::vmm
