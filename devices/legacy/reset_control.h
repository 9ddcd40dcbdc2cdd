// The two other ways to reset a PC: the reset control register at CF9h (PIIX3, 2.2.15), which the FADT names
// as ACPI reset register, and bit 0 of port 92h. Both ask the machine for a reset and return; the vCPU that
// wrote is stopped soon after.
#pragma once

#include <functional>

#include "devices/legacy/byte_registers.h"

namespace spindle::legacy {

/// What to write at CF9h for a hard reset: the kind of reset, and go.
inline constexpr uint8_t kResetControlHard = 0x06;

class ResetControl final : public ByteRegisters {
 public:
  explicit ResetControl(std::function<void()> reset) : reset_(std::move(reset)) {}
  void reset() {
    std::lock_guard lock(mutex_);
    value_ = 0;
  }

 private:
  static constexpr uint8_t kGo = 1u << 2, kKind = 1u << 1;
  uint8_t read_byte(unsigned) override { return value_; }
  void write_byte(unsigned, uint8_t value) override {
    value_ = value & kKind;  // the go bit reads as zero: the reset it starts clears it
    if (value & kGo) reset_();
  }
  std::function<void()> reset_;
  uint8_t value_ = 0;
};

class FastReset final : public ByteRegisters {
 public:
  explicit FastReset(std::function<void()> reset) : reset_(std::move(reset)) {}

 private:
  static constexpr uint8_t kGo = 1u << 0, kA20 = 1u << 1;
  uint8_t read_byte(unsigned) override { return kA20; }  // the A20 gate is always open here
  void write_byte(unsigned, uint8_t value) override {
    if (value & kGo) reset_();
  }
  std::function<void()> reset_;
};

}  // namespace spindle::legacy
