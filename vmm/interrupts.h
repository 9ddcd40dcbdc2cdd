// How devices interrupt the guest, over KVM.
//
//   SharedPin    an ISA IRQ or I/O APIC pin. Several devices may pull it: the pin is asserted while any of
//   them does. VmMessages   MSI-X of one PCI function: each vector has an eventfd that KVM turns into the
//   message (irqfd), so that
//                any thread, and later another process, raises it with one write.
//   VmDoorbells  ioeventfd: guest writes to a doorbell signal an eventfd without leaving the kernel.
//
// All of it is for any thread. A call that KVM refuses cannot be reported to the device, whose guest has done
// nothing wrong: it goes to the machine's fault handler, which ends the run.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "devices/bus.h"
#include "vmm/kvm.h"

namespace spindle::vmm {

/// What is called when KVM fails where it must not.
using FaultHandler = std::function<void(const Error&)>;

class SharedPin {
 public:
  /// `drive` sets the level of the wire; called under the pin's lock, so in the order of the changes.
  explicit SharedPin(std::function<void(bool level)> drive) : drive_(std::move(drive)) {}
  SharedPin(const SharedPin&) = delete;
  SharedPin& operator=(const SharedPin&) = delete;

  /// A new input of the pin, owned by the pin.
  InterruptLine& add_input();
  /// Drives the present level again, after the chips in the kernel were reset.
  void refresh();

 private:
  class Input final : public InterruptLine {
   public:
    explicit Input(SharedPin& pin) : pin_(pin) {}
    void set_level(bool asserted) override { pin_.set(*this, asserted); }

   private:
    friend class SharedPin;
    SharedPin& pin_;
    bool asserted_ = false;
  };
  void set(Input& input, bool asserted);

  std::function<void(bool)> drive_;
  std::mutex mutex_;
  unsigned asserted_ = 0;
  std::vector<std::unique_ptr<Input>> inputs_;
};

class VmMessages final : public MessageRouter {
 public:
  /// `next_gsi` numbers the messages of the whole machine.
  VmMessages(Vm& vm, std::atomic<unsigned>& next_gsi, FaultHandler fault)
      : vm_(vm), next_gsi_(next_gsi), fault_(std::move(fault)) {}
  ~VmMessages() override;
  void route(unsigned vector, uint64_t address, uint32_t data) override;
  void signal(unsigned vector) override;

 private:
  struct Vector {
    Fd event;
    unsigned gsi = 0;
    uint64_t address = 0;
    uint32_t data = 0;
  };
  Result<> set_route(unsigned vector, uint64_t address, uint32_t data);

  Vm& vm_;
  std::atomic<unsigned>& next_gsi_;
  FaultHandler fault_;
  std::mutex mutex_;
  std::map<unsigned, Vector> vectors_;
};

class VmDoorbells final : public DoorbellBinder {
 public:
  explicit VmDoorbells(Vm& vm) : vm_(vm) {}
  bool bind(uint64_t guest_address, unsigned width, int event_fd) override {
    return vm_.bind_ioeventfd(guest_address, width, event_fd).has_value();
  }
  void unbind(uint64_t guest_address, unsigned width, int event_fd) override {
    // Refused only for one that is not bound, which is what is wanted.
    (void)vm_.unbind_ioeventfd(guest_address, width, event_fd);
  }

 private:
  Vm& vm_;
};

}  // namespace spindle::vmm
