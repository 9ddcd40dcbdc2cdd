// PciFunction: the configuration space of one PCI function (type 0 header) and its base address registers.
//
// A device derives from it, describes itself in its constructor, and hands one IoHandler per BAR. The bus
// (vmm/) routes configuration accesses here and asks mapping() where the BARs are at the moment. Everything
// the guest writes goes through a write mask, so nothing it writes can make the header inconsistent.
//
// Threading: configuration accesses come from vCPU threads; a lock per function. Hooks run under that lock.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "devices/bus.h"

namespace spindle::pci {

// Offsets of the type 0 header (PCI Local Bus 3.0, 6.1).
inline constexpr unsigned kVendorId = 0x00;
inline constexpr unsigned kDeviceId = 0x02;
inline constexpr unsigned kCommand = 0x04;
inline constexpr unsigned kStatus = 0x06;
inline constexpr unsigned kRevisionId = 0x08;
inline constexpr unsigned kClassProgIf = 0x09;
inline constexpr unsigned kSubclass = 0x0a;
inline constexpr unsigned kClass = 0x0b;
inline constexpr unsigned kHeaderType = 0x0e;
inline constexpr unsigned kBar0 = 0x10;
inline constexpr unsigned kSubsystemVendorId = 0x2c;
inline constexpr unsigned kSubsystemId = 0x2e;
inline constexpr unsigned kCapabilitiesPointer = 0x34;
inline constexpr unsigned kInterruptLine = 0x3c;
inline constexpr unsigned kInterruptPin = 0x3d;

// Bits of Command and Status.
inline constexpr uint16_t kCommandIo = 1u << 0;
inline constexpr uint16_t kCommandMemory = 1u << 1;
inline constexpr uint16_t kCommandBusMaster = 1u << 2;
inline constexpr uint16_t kCommandInterruptDisable = 1u << 10;
inline constexpr uint16_t kStatusInterrupt = 1u << 3;
inline constexpr uint16_t kStatusCapabilities = 1u << 4;

enum class BarKind : uint8_t { Io, Memory32, Memory64 };

struct Identity {
  uint16_t vendor = 0;
  uint16_t device = 0;
  uint8_t revision = 0;
  uint8_t base_class = 0;
  uint8_t subclass = 0;
  uint8_t prog_if = 0;
  uint16_t subsystem_vendor = 0;
  uint16_t subsystem = 0;
  uint8_t interrupt_pin = 0;  ///< 0 none, 1 INTA
};

/// Where a BAR answers now.
struct BarMapping {
  unsigned index = 0;
  bool io = false;
  uint64_t address = 0;
  uint64_t size = 0;
  IoHandler* handler = nullptr;
};

class PciFunction {
 public:
  explicit PciFunction(const Identity& identity);
  virtual ~PciFunction() = default;
  PciFunction(const PciFunction&) = delete;
  PciFunction& operator=(const PciFunction&) = delete;

  /// Configuration accesses; width 1, 2 or 4, offset < 256. An access that straddles the end reads all ones.
  uint32_t read_config(unsigned offset, unsigned width);
  void write_config(unsigned offset, unsigned width, uint32_t value);

  /// The BARs that decode now: described, enabled in Command, and with an address that does not wrap. Any
  /// thread.
  std::vector<BarMapping> mappings() const;
  /// What the firmware of a real machine would do: gives a BAR its first address. Size and alignment from
  /// bar_size().
  void assign_bar(unsigned index, uint64_t address);
  /// The size of a described BAR, 0 for one that is not.
  uint64_t bar_size(unsigned index) const;
  bool bar_is_io(unsigned index) const;

  /// Power-on and machine reset: Command, BARs and what the guest wrote go back to their first values;
  /// assign_bar() is needed again. Overriders call this first.
  virtual void reset();

  /// The bus wants to know when mappings() may have changed. Called without the lock held.
  void set_mapping_listener(std::function<void()> listener) { listener_ = std::move(listener); }

 protected:
  /// Describes a BAR; `size` is a power of two, at least 16 (memory) or 4 (I/O). Memory64 takes `index` and
  /// index + 1.
  void add_bar(unsigned index, BarKind kind, uint64_t size, IoHandler* handler);
  /// Appends a capability of `length` bytes (id and next included) and returns its offset. Its body starts as
  /// zeroes.
  unsigned add_capability(uint8_t id, unsigned length);

  // Raw access for the constructor and, under the lock, for hooks. Little endian.
  void set8(unsigned offset, uint8_t value) { config_[offset] = value; }
  void set16(unsigned offset, uint16_t value);
  void set32(unsigned offset, uint32_t value);
  uint16_t get16(unsigned offset) const;
  uint32_t get32(unsigned offset) const;
  /// Lets the guest write the bits of `mask` at `offset`.
  void set_writable(unsigned offset, unsigned width, uint32_t mask);

  /// Before a read of [offset, offset + width): may refresh those bytes. Under the lock.
  virtual void before_config_read(unsigned /*offset*/, unsigned /*width*/) {}
  /// After a write was taken over through the mask. Under the lock.
  virtual void after_config_write(unsigned /*offset*/, unsigned /*width*/) {}
  /// The same, without the lock, for what must call out of the function (interrupt lines, doorbells).
  virtual void config_changed() {}

  mutable std::mutex config_mutex_;

 private:
  struct Bar {
    BarKind kind = BarKind::Memory32;
    uint64_t size = 0;  // 0: not described
    IoHandler* handler = nullptr;
  };
  uint64_t bar_address(unsigned index) const;

  std::array<uint8_t, 256> config_{};
  std::array<uint8_t, 256> power_on_{};
  bool power_on_saved_ = false;
  std::array<uint8_t, 256> writable_{};
  std::array<Bar, 6> bars_{};
  unsigned next_capability_ = 0x40;
  std::function<void()> listener_;
};

}  // namespace spindle::pci
