// PciBus: PCI bus 0 behind configuration mechanism 1 (PCI Local Bus 3.0, 3.2.2.3.2): the address goes to port
// CF8h, the data moves at CFCh-CFFh. It also does what firmware would have done before the kernel starts:
// gives every BAR its address, names the interrupt and switches decoding on.
//
// Where a BAR answers at any moment is the function's to say; the bus copies it into the port and memory
// spaces each time the function reports a change.
//
// INTx: pin n of device d goes to I/O APIC pin 16 + (d + n) % 4, as _PRT in the DSDT says; functions share
// the pins.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "block/result.h"
#include "devices/pci/pci_function.h"
#include "vmm/interrupts.h"
#include "vmm/io_space.h"

namespace spindle::vmm {

/// Where a function sits: device 0-31, function 0-7.
struct PciSlot {
  unsigned device = 0;
  unsigned function = 0;
  auto operator<=>(const PciSlot&) const = default;
};

class PciBus {
 public:
  /// `pins`: the four wires for INTx, kGsiPciFirst and up. All must outlive the bus.
  PciBus(IoSpace& ports, IoSpace& memory, std::array<SharedPin*, 4> pins);
  ~PciBus();
  PciBus(const PciBus&) = delete;
  PciBus& operator=(const PciBus&) = delete;

  /// Plugs in; `function` outlives the bus. Before the vCPUs run. Invalid if the slot is taken.
  Result<> add(PciSlot slot, pci::PciFunction& function);
  /// The INTx input of a device that is going to sit at `slot`; pin 1 is INTA.
  InterruptLine& interrupt(PciSlot slot, unsigned pin);
  /// I/O APIC pin of an INTx pin.
  static unsigned interrupt_gsi(PciSlot slot, unsigned pin);

  /// Firmware's part, after power-on and each reset. Invalid if the windows are too small for all BARs.
  Result<> assign_resources();
  /// Resets all functions, in the order of their slots. The vCPUs are stopped.
  void reset();

 private:
  class ConfigAddress;
  class ConfigData;
  struct Plugged {
    PciSlot slot;
    pci::PciFunction* function;
  };

  pci::PciFunction* find(PciSlot slot) const;
  void update_windows(pci::PciFunction& function);
  uint32_t read_config(unsigned byte, unsigned width);
  void write_config(unsigned byte, unsigned width, uint32_t value);
  /// The function and register that the address port names, if any.
  pci::PciFunction* addressed(unsigned& offset);

  IoSpace& ports_;
  IoSpace& memory_;
  std::array<SharedPin*, 4> pins_;
  std::vector<Plugged> functions_;  // sorted; constant while vCPUs run
  std::unique_ptr<IoHandler> address_port_;
  std::unique_ptr<IoHandler> data_port_;
  std::mutex address_mutex_;
  uint32_t address_ = 0;
  std::mutex windows_mutex_;  // a function's windows are read and published as one step
};

/// The host bridge at 00:00.0, as which Linux finds a 440FX.
class HostBridge final : public pci::PciFunction {
 public:
  HostBridge();
};

/// The ISA bridge at 00:01.0, a PIIX4; the IDE controller is function 1 of the same device.
class IsaBridge final : public pci::PciFunction {
 public:
  IsaBridge();
};

}  // namespace spindle::vmm
