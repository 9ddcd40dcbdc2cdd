#include "vmm/vcpu.h"

#include <fmt/format.h>
#include <signal.h>

#include <cassert>
#include <cerrno>
#include <system_error>

#include "vmm/sandbox.h"

namespace spindle::vmm {
namespace {

std::string internal_error_name(uint32_t suberror) {
  switch (suberror) {
    case KVM_INTERNAL_ERROR_EMULATION:
      return "an instruction that KVM cannot emulate";
    case KVM_INTERNAL_ERROR_SIMUL_EX:
      return "nested exceptions that KVM cannot deliver";
    case KVM_INTERNAL_ERROR_DELIVERY_EV:
      return "an exit while an event was being delivered";
    case KVM_INTERNAL_ERROR_UNEXPECTED_EXIT_REASON:
      return "an exit reason that KVM does not know";
    default:
      return fmt::format("internal error {}", suberror);
  }
}

}  // namespace

Vcpu::Vcpu(std::unique_ptr<KvmCpu> cpu, const IoSpace& ports, const IoSpace& memory,
           std::function<void(CpuEvent)> report)
    : cpu_(std::move(cpu)), ports_(ports), memory_(memory), report_(std::move(report)) {}

Vcpu::~Vcpu() {
  if (!thread_.joinable()) return;
  request(Phase::Stopped);
  thread_.join();
}

Result<> Vcpu::install_kick_signal() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  if (sigaction(kKickSignal, &action, nullptr) < 0) {
    return std::unexpected(Error::from_errno(errno, "sigaction", "the vCPU signal"));
  }
  return {};
}

void Vcpu::start() {
  std::lock_guard lock(mutex_);  // a request for it may come while it starts
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), fmt::format("vcpu{}", cpu_->id()).c_str());
    confine_or_end(ThreadRole::Vcpu);
    main();
  });
}

void Vcpu::request(Phase wanted) {
  std::lock_guard lock(mutex_);
  if (wanted_ == Phase::Stopped) return;
  wanted_ = wanted;
  changed_.notify_all();
  if (wanted == Phase::Running) return;
  // Under the lock, as is the clearing of immediate_exit before a run: so no request is lost in between.
  cpu_->set_immediate_exit(true);
  if (parked_) parked_->kick();
  if (thread_.joinable()) pthread_kill(thread_.native_handle(), kKickSignal);
}

void Vcpu::request_pause() {
  request(Phase::Paused);
}

void Vcpu::resume() {
  request(Phase::Running);
}

void Vcpu::wait_paused() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return actual_ != Phase::Running; });
}

// Waits out a pause; false if the thread is to end.
bool Vcpu::wait_until_wanted(std::unique_lock<std::mutex>& lock) {
  while (wanted_ == Phase::Paused) {
    actual_ = Phase::Paused;
    changed_.notify_all();
    changed_.wait(lock);
  }
  actual_ = wanted_;
  changed_.notify_all();
  return wanted_ == Phase::Running;
}

void Vcpu::main() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (!wait_until_wanted(lock)) return;
      cpu_->set_immediate_exit(false);
      forget_parked_ = false;
    }
    run();
  }
}

void Vcpu::run() {
  while (true) {
    const int error = cpu_->run();
    if (error == EAGAIN) continue;  // a processor that has just been woken by INIT
    if (error == EINTR) {
      exits_.interrupted.add();
      return;
    }
    if (error != 0) {
      end_with(CpuEventKind::Failure,
               fmt::format("KVM_RUN failed: {}", std::generic_category().message(error)));
      return;
    }
    handle_exit();
  }
}

void Vcpu::handle_exit() {
  const kvm_run& run = cpu_->run_page();
  switch (run.exit_reason) {
    case KVM_EXIT_IO:
      return handle_io();
    case KVM_EXIT_MMIO:
      return handle_mmio();
    case KVM_EXIT_INTR:
    case KVM_EXIT_HLT:
    case KVM_EXIT_IRQ_WINDOW_OPEN:
      exits_.other.add();
      return;
    case KVM_EXIT_SHUTDOWN:
      return end_with(CpuEventKind::TripleFault, "triple fault");
    case KVM_EXIT_FAIL_ENTRY:
      return end_with(CpuEventKind::Failure,
                      fmt::format("the processor refused to enter the guest (hardware reason {:#x})",
                                  run.fail_entry.hardware_entry_failure_reason));
    case KVM_EXIT_INTERNAL_ERROR:
      return end_with(CpuEventKind::Failure, internal_error_name(run.internal.suberror));
    case KVM_EXIT_SYSTEM_EVENT:
      switch (run.system_event.type) {
        case KVM_SYSTEM_EVENT_SHUTDOWN:
          return end_with(CpuEventKind::PowerOff, "shutdown event");
        case KVM_SYSTEM_EVENT_RESET:
          return end_with(CpuEventKind::Reset, "reset event");
        case KVM_SYSTEM_EVENT_CRASH:
          return end_with(CpuEventKind::Crash, "crash event");
        default:
          return end_with(CpuEventKind::Failure, fmt::format("system event {}", run.system_event.type));
      }
    default:
      return end_with(CpuEventKind::Failure, fmt::format("exit for reason {}", run.exit_reason));
  }
}

void Vcpu::handle_io() {
  exits_.io.add();
  kvm_run& run = cpu_->run_page();
  uint8_t* first = reinterpret_cast<uint8_t*>(&run) + run.io.data_offset;
  const std::size_t width = run.io.size;
  const std::span<uint8_t> data(first, width * run.io.count);
  if (run.io.direction == KVM_EXIT_IO_IN) {
    ports_.read(run.io.port, data, width);
  } else if (auto access = ports_.write(run.io.port, data, width)) {
    park(std::move(access));
  }
}

void Vcpu::handle_mmio() {
  exits_.mmio.add();
  kvm_run& run = cpu_->run_page();
  const std::span<uint8_t> data(run.mmio.data, run.mmio.len);
  if (!run.mmio.is_write) {
    memory_.read(run.mmio.phys_addr, data, data.size());
  } else if (auto access = memory_.write(run.mmio.phys_addr, data, data.size())) {
    park(std::move(access));
  }
}

// The guest's instruction is not complete until the device says so. A pause (for a reset, or to save the
// machine) leaves the access parked and goes on waiting afterwards, unless a reset has forgotten it.
void Vcpu::park(std::shared_ptr<ParkedAccess> access) {
  std::unique_lock lock(mutex_);
  parked_ = access;
  if (wanted_ != Phase::Running) access->kick();
  while (true) {
    lock.unlock();
    const bool finished = access->wait();
    lock.lock();
    if (finished || !wait_until_wanted(lock) || forget_parked_) break;
  }
  parked_ = nullptr;
}

void Vcpu::end_with(CpuEventKind kind, std::string detail) {
  exits_.other.add();
  request_pause();  // nothing more is run of a guest whose machine has ended
  report_({kind, std::move(detail)});
}

Result<> Vcpu::reset(const KvmCpu::State& state) {
  {
    std::lock_guard lock(mutex_);
    assert(actual_ == Phase::Paused);
    forget_parked_ = parked_ != nullptr;
  }
  // KVM may still have half an access to complete, which must not happen on top of the new registers. With
  // immediate_exit set this runs no instruction; what it answers does not matter.
  cpu_->set_immediate_exit(true);
  cpu_->run();
  return cpu_->set_state(state);
}

}  // namespace spindle::vmm
