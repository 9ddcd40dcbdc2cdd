// AcpiPm: the fixed power management registers of ACPI (specification 6.0, 4.8.3): PM1 event and control
// blocks and the 3.58 MHz timer. They carry soft off out of the guest and the power button into it.
//
// The timer's carry sets its status bit, when somebody looks, but raises no interrupt: 32 bits last 20
// minutes and no guest that reads the FADT's "32 bit" flag asks for it.
#pragma once

#include <chrono>
#include <functional>

#include "devices/legacy/byte_registers.h"

namespace spindle::legacy {

class AcpiPm final : public ByteRegisters {
 public:
  static constexpr unsigned kPorts = 12;            // status 0-1, enable 2-3, control 4-5, timer 8-11
  static constexpr unsigned kSleepTypeSoftOff = 5;  // as _S5 in the DSDT says

  /// `power_off` is called by a vCPU thread and must not wait for that thread.
  AcpiPm(InterruptLine& sci, std::function<void()> power_off);

  /// Any thread: the user pressed the power button; the guest decides what that means.
  void press_power_button();
  void reset();

 private:
  uint8_t read_byte(unsigned offset) override;
  void write_byte(unsigned offset, uint8_t value) override;
  uint32_t timer() const;
  void note_carry();
  void update_interrupt() { sci_.set_level((status_ & enable_) != 0); }

  InterruptLine& sci_;
  std::function<void()> power_off_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  uint16_t status_ = 0;
  uint16_t enable_ = 0;
  uint16_t control_;
  uint32_t carry_seen_ = 0;
  uint32_t timer_latch_ = 0;  // a read of the lowest byte keeps the others of the same moment
};

}  // namespace spindle::legacy
