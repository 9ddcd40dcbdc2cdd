// Pvpanic: the port by which a guest kernel says that it has panicked (QEMU's docs/specs/pvpanic; ACPI
// QEMU0001).
#pragma once

#include <functional>

#include "devices/legacy/byte_registers.h"

namespace spindle::legacy {

class Pvpanic final : public ByteRegisters {
 public:
  /// `panicked` is called by a vCPU thread and must not wait for that thread.
  explicit Pvpanic(std::function<void()> panicked) : panicked_(std::move(panicked)) {}

 private:
  static constexpr uint8_t kPanicked = 1u << 0;
  static constexpr uint8_t kCrashLoaded = 1u << 1;  // a crash kernel takes over: the guest goes on
  uint8_t read_byte(unsigned) override { return kPanicked | kCrashLoaded; }
  void write_byte(unsigned, uint8_t value) override {
    if (value & kPanicked) panicked_();
  }
  std::function<void()> panicked_;
};

}  // namespace spindle::legacy
