// KVM: the kernel's interface in RAII wrappers over the raw ioctls, and nothing more than Spindle needs of
// it.
//
//   Kvm   /dev/kvm: version and capabilities
//   Vm    a virtual machine with its interrupt controllers (two PICs, one I/O APIC, one PIT, all in the
//   kernel),
//         memory slots, interrupt routing, irqfds and ioeventfds
//   KvmCpu  one virtual CPU and its shared kvm_run page
//
// Ownership: a Vm must outlive its KvmCpus. Threading: Vm's methods are for any thread, the kernel locks; the
// routing table alone has a lock here, because the kernel takes it whole. KvmCpu belongs to the thread that
// runs it; others may use it while that one is known not to be inside run().
#pragma once

#include <linux/kvm.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "block/result.h"

namespace spindle::vmm {

/// A file descriptor that closes itself.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

class Kvm {
 public:
  /// Opens /dev/kvm and checks that it can do all that Spindle needs. The error says what to do.
  static Result<Kvm> open(const std::string& path = "/dev/kvm");

  int fd() const { return fd_.get(); }
  /// What KVM_CHECK_EXTENSION says; 0 if the kernel does not have it.
  int extension(unsigned capability) const;
  /// The CPUID leaves that KVM can offer on this processor.
  Result<std::vector<kvm_cpuid_entry2>> supported_cpuid() const;
  /// The model-specific registers that KVM saves and restores.
  Result<std::vector<uint32_t>> msr_indices() const;

 private:
  explicit Kvm(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

class Vm {
 public:
  static Result<std::unique_ptr<Vm>> create(const Kvm& kvm);

  int fd() const { return fd_.get(); }
  const Kvm& kvm() const { return kvm_; }

  /// Gives the guest `size` bytes at `host` (page aligned, living as long as the Vm) at `guest_address`.
  Result<> add_memory(uint32_t slot, uint64_t guest_address, uint64_t size, void* host);

  /// Sets the level of an interrupt pin (ISA IRQ or I/O APIC pin).
  Result<> set_irq_line(unsigned gsi, bool level);
  /// Routes `gsi` (from kGsiMessageFirst up) to a message and installs the new table.
  Result<> route_message(unsigned gsi, uint64_t address, uint32_t data);
  /// A write to `event_fd` from now on raises `gsi`.
  Result<> bind_irqfd(int event_fd, unsigned gsi);
  Result<> unbind_irqfd(int event_fd, unsigned gsi);
  /// A guest write of `width` bytes to `guest_address` from now on signals `event_fd` and does not exit.
  Result<> bind_ioeventfd(uint64_t guest_address, unsigned width, int event_fd);
  Result<> unbind_ioeventfd(uint64_t guest_address, unsigned width, int event_fd);

  /// The state of the chips in the kernel, for reset: both PICs, the I/O APIC and the PIT.
  struct ChipState {
    kvm_irqchip pic_master{}, pic_slave{}, ioapic{};
    kvm_pit_state2 pit{};
  };
  Result<ChipState> chip_state() const;
  Result<> set_chip_state(const ChipState& state);

 private:
  Vm(const Kvm& kvm, Fd fd) : kvm_(kvm), fd_(std::move(fd)) {}
  Result<> install_routes();

  const Kvm& kvm_;
  Fd fd_;
  std::mutex routes_mutex_;
  std::map<unsigned, kvm_irq_routing_msi> messages_;
};

class KvmCpu {
 public:
  static Result<std::unique_ptr<KvmCpu>> create(const Vm& vm, unsigned id);
  ~KvmCpu();
  KvmCpu(const KvmCpu&) = delete;
  KvmCpu& operator=(const KvmCpu&) = delete;

  kvm_run& run_page() { return *run_; }
  unsigned id() const { return id_; }
  /// Enters the guest. Returns 0 or an errno: EINTR after a kick, others are failures.
  int run();
  /// Any thread: makes the next (or, with a signal to its thread, the current) run() return EINTR while set.
  void set_immediate_exit(bool on);

  Result<> set_cpuid(const std::vector<kvm_cpuid_entry2>& entries);
  Result<kvm_sregs> sregs() const;
  Result<> set_sregs(const kvm_sregs& sregs);
  Result<kvm_regs> regs() const;
  Result<> set_regs(const kvm_regs& regs);

  /// All that a machine reset must put back: taken before the first run(), it is the power-on state.
  struct State {
    kvm_regs regs{};
    kvm_sregs sregs{};
    kvm_fpu fpu{};
    kvm_lapic_state lapic{};
    kvm_mp_state mp_state{};
    kvm_vcpu_events events{};
    kvm_debugregs debug{};
    std::optional<kvm_xcrs> xcrs;  // if the processor has XSAVE
    std::vector<kvm_msr_entry> msrs;
  };
  Result<State> state(const std::vector<uint32_t>& msr_indices) const;
  Result<> set_state(const State& state);

 private:
  KvmCpu(Fd fd, unsigned id, kvm_run* run, size_t run_size)
      : fd_(std::move(fd)), id_(id), run_(run), run_size_(run_size) {}

  Fd fd_;
  unsigned id_;
  kvm_run* run_;
  size_t run_size_;
  bool has_xsave_ = false;  // as its CPUID says
};

}  // namespace spindle::vmm
