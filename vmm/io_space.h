// IoSpace: who answers at an address. There are two, one of ports and one of guest-physical memory. A vCPU's
// exit comes in here and goes out to a device's IoHandler.
//
// Fixed ranges come from the machine and never change. Windows are the BARs of PCI functions, which the guest
// moves and switches on and off while other vCPUs use them. The first range that holds the whole access gets
// it: fixed ones before windows, in the order they were added, so a guest cannot lay a BAR over the machine's
// own ports. An access that nobody takes reads all ones and writes nothing, as on a bus.
//
// Handlers live as long as the machine: the lock covers the look-up, not the access.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <vector>

#include "devices/bus.h"

namespace spindle::vmm {

class IoSpace {
 public:
  struct Window {
    uint64_t address;
    uint64_t size;
    IoHandler* handler;
  };

  /// A range that stays. Before the vCPUs run.
  void add(uint64_t address, uint64_t size, IoHandler& handler);
  /// From now on these are the windows of `owner`, and no others. Any thread.
  void set_windows(const void* owner, std::span<const Window> windows);

  /// data.size() is `count` accesses of `width` bytes each, all at `address` (rep ins).
  void read(uint64_t address, std::span<uint8_t> data, std::size_t width) const;
  /// Not null if the access must wait; only for a single one.
  std::shared_ptr<ParkedAccess> write(uint64_t address, std::span<const uint8_t> data,
                                      std::size_t width) const;

 private:
  struct Range {
    Window window;
    const void* owner;  // null: fixed
  };
  std::optional<Window> find(uint64_t address, std::size_t width) const;

  mutable std::shared_mutex mutex_;
  std::vector<Range> ranges_;
};

}  // namespace spindle::vmm
