#include "vmm/chipset.h"

namespace spindle::vmm {
namespace {

std::array<std::unique_ptr<SharedPin>, kIoApicPins> make_pins(
    const std::function<void(unsigned, bool)>& drive) {
  std::array<std::unique_ptr<SharedPin>, kIoApicPins> pins;
  for (unsigned gsi = 0; gsi < kIoApicPins; ++gsi) {
    pins[gsi] = std::make_unique<SharedPin>([drive, gsi](bool level) { drive(gsi, level); });
  }
  return pins;
}

}  // namespace

Chipset::Chipset(IoSpace& ports, legacy::SerialLine& line, std::function<void(unsigned, bool)> drive_pin,
                 const MachineRequests& requests)
    : pins_(make_pins(drive_pin)),
      serial_(pin(kIrqSerial1).add_input(), line),
      rtc_(pin(kIrqRtc).add_input()),
      i8042_(requests.reset),
      pm_(pin(kIrqSci).add_input(), requests.power_off),
      reset_control_(requests.reset),
      fast_reset_(requests.reset),
      pvpanic_(requests.panicked) {
  ports.add(kPortSerial1, legacy::SerialPort::kPorts, serial_);
  ports.add(kPortRtc, legacy::Rtc::kPorts, rtc_);
  ports.add(kPortI8042Data, 1, i8042_.data_port());
  ports.add(kPortI8042Command, 1, i8042_.command_port());
  ports.add(kPortPm1Event, legacy::AcpiPm::kPorts, pm_);
  ports.add(kPortResetControl, 1, reset_control_);
  ports.add(kPortFastReset, 1, fast_reset_);
  ports.add(kPortPvpanic, 1, pvpanic_);
  ports.add(kPortDelay, 1, delay_);
}

std::array<SharedPin*, kGsiPciCount> Chipset::pci_pins() {
  return {pins_[kGsiPciFirst].get(), pins_[kGsiPciFirst + 1].get(), pins_[kGsiPciFirst + 2].get(),
          pins_[kGsiPciFirst + 3].get()};
}

void Chipset::reset() {
  serial_.reset();
  rtc_.reset();
  i8042_.reset();
  pm_.reset();
  reset_control_.reset();
}

void Chipset::refresh_pins() {
  for (auto& pin : pins_) pin->refresh();
}

}  // namespace spindle::vmm
