// MsiX: the message interrupts of one PCI function (PCI Local Bus 3.0, 6.8.2): the vector table and the
// pending bits, which lie in a BAR, and what the enable and mask bits of the capability do.
//
// A vector is live when MSI-X is enabled and neither the function nor the vector is masked. A signal of a
// live vector is sent; of a masked one it is remembered in its pending bit and sent when the vector becomes
// live. The router learns of a vector's address and data no later than when it becomes live, and only if they
// changed: reprogramming is costly for KVM.
//
// Threading: all of it from any thread, under a lock of its own which is held while the router is called, so
// that routing, masking and signals cannot overtake one another. The router must not call back.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "devices/bus.h"

namespace spindle::pci {

inline constexpr uint8_t kMsixCapability = 0x11;
inline constexpr unsigned kMsixCapabilityBytes = 12;
inline constexpr uint16_t kMsixEnable = 1u << 15;
inline constexpr uint16_t kMsixFunctionMask = 1u << 14;

class MsiX {
 public:
  static constexpr unsigned kEntryBytes = 16;

  /// `vectors`: 1 to 2048. The router outlives this object.
  MsiX(unsigned vectors, MessageRouter& router);

  unsigned vectors() const { return static_cast<unsigned>(entries_.size()); }
  uint64_t table_bytes() const { return uint64_t{kEntryBytes} * entries_.size(); }
  uint64_t pending_bytes() const { return (entries_.size() + 63) / 64 * 8; }

  /// Accesses of the table and of the pending bits; bytes beyond their ends read as zero and swallow writes.
  /// The pending bits are read only.
  void read_table(uint64_t offset, std::span<uint8_t> data) const;
  void write_table(uint64_t offset, std::span<const uint8_t> data);
  void read_pending(uint64_t offset, std::span<uint8_t> data) const;

  /// Message Control of the capability was written.
  void set_control(uint16_t control);
  bool enabled() const;

  /// Sends or remembers. Nothing if MSI-X is disabled or there is no such vector.
  void signal(unsigned vector);

  /// As after power-on: disabled, all vectors masked, nothing pending.
  void reset();

 private:
  struct Entry {
    std::array<uint8_t, kEntryBytes> bytes{};
    bool routed = false;  // the router knows address and data as they are
    bool pending = false;
  };
  bool live(const Entry& entry) const;
  void refresh(unsigned vector);

  MessageRouter& router_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  bool enabled_ = false;
  bool function_masked_ = false;
};

}  // namespace spindle::pci
