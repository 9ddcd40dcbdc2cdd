// IntxPin: the ISR status register of a virtio PCI function (4.1.4.5) and the interrupt pin that follows it.
//
// The pin is asserted while any ISR bit is set, unless Command's Interrupt Disable bit or MSI-X keeps it
// down. Reading the register clears it and so lowers the pin.
//
// Threading: any thread; one lock, held while the line is set, so that levels cannot overtake one another.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "devices/bus.h"

namespace spindle::virtio {

class IntxPin {
 public:
  explicit IntxPin(InterruptLine& line) : line_(line) {}

  void raise(uint8_t bits) {
    std::lock_guard lock(mutex_);
    isr_ |= bits;
    follow();
  }
  uint8_t read_and_clear() {
    std::lock_guard lock(mutex_);
    const uint8_t bits = std::exchange(isr_, uint8_t{0});
    follow();
    return bits;
  }
  void set_interrupt_disable(bool on) {
    std::lock_guard lock(mutex_);
    disabled_ = on;
    follow();
  }
  void set_msix_enabled(bool on) {
    std::lock_guard lock(mutex_);
    msix_ = on;
    follow();
  }
  /// What Interrupt Status in the Status register shows: Interrupt Disable does not change it.
  bool pending() const {
    std::lock_guard lock(mutex_);
    return isr_ != 0 && !msix_;
  }

 private:
  void follow() {
    const bool level = isr_ != 0 && !disabled_ && !msix_;
    if (level != level_) line_.set_level(level);
    level_ = level;
  }

  InterruptLine& line_;
  mutable std::mutex mutex_;
  uint8_t isr_ = 0;
  bool disabled_ = false;
  bool msix_ = false;
  bool level_ = false;
};

}  // namespace spindle::virtio
