// Chipset: the devices every machine has, wired to their ports and interrupt pins. What the kernel provides
// (PICs, I/O APIC, local APICs, PIT) is not here.
#pragma once

#include <array>
#include <functional>
#include <memory>

#include "devices/legacy/acpi_pm.h"
#include "devices/legacy/i8042.h"
#include "devices/legacy/pvpanic.h"
#include "devices/legacy/reset_control.h"
#include "devices/legacy/rtc.h"
#include "devices/legacy/serial.h"
#include "vmm/interrupts.h"
#include "vmm/io_space.h"
#include "vmm/layout.h"

namespace spindle::vmm {

/// What a guest can ask of its machine. Called by vCPU threads; must not wait for them.
struct MachineRequests {
  std::function<void()> reset;
  std::function<void()> power_off;
  std::function<void()> panicked;
};

class Chipset {
 public:
  /// `drive_pin` sets the level of an I/O APIC pin.
  Chipset(IoSpace& ports, legacy::SerialLine& line, std::function<void(unsigned gsi, bool level)> drive_pin,
          const MachineRequests& requests);

  SharedPin& pin(unsigned gsi) { return *pins_.at(gsi); }
  /// The four pins that PCI functions share.
  std::array<SharedPin*, kGsiPciCount> pci_pins();
  legacy::SerialPort& serial() { return serial_; }
  legacy::AcpiPm& power_management() { return pm_; }

  /// Starts the clock's thread, which does `begin` first. Once, before a guest runs.
  void start(const std::function<void()>& begin) { rtc_.start(begin); }
  /// Machine reset of the devices. The vCPUs are stopped.
  void reset();
  /// Puts the pins' levels into interrupt controllers that were reset.
  void refresh_pins();

 private:
  /// A port where something is expected but nothing happens: POST codes and delays.
  class Ignored final : public legacy::ByteRegisters {
    uint8_t read_byte(unsigned) override { return 0xff; }
    void write_byte(unsigned, uint8_t) override {}
  };

  std::array<std::unique_ptr<SharedPin>, kIoApicPins> pins_;
  legacy::SerialPort serial_;
  legacy::Rtc rtc_;
  legacy::I8042 i8042_;
  legacy::AcpiPm pm_;
  legacy::ResetControl reset_control_;
  legacy::FastReset fast_reset_;
  legacy::Pvpanic pvpanic_;
  Ignored delay_;
};

}  // namespace spindle::vmm
