// GuestRam: the guest's memory, one memfd mapped once, cut in two around the hole below 4 GiB where the PCI
// window and the interrupt controllers lie.
//
// A memfd, so that another process can map it too (a vhost-user device is handed the descriptor), and sealed
// against shrinking, so that none of them can pull pages from under the others. It is mapped shared and not
// touched: pages come when the guest uses them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "block/result.h"
#include "devices/guest_memory.h"
#include "vmm/kvm.h"

namespace spindle::vmm {

inline constexpr uint64_t kMinMemory = 64ull << 20;
inline constexpr uint64_t kMaxMemory = 1ull << 40;

/// One line of the memory map that the guest is given (INT 15h E820h types: 1 RAM, 2 reserved).
struct MemoryMapEntry {
  uint64_t address;
  uint64_t size;
  uint32_t type;
};

class GuestRam {
 public:
  /// The name under which /proc/PID/smaps shows the mapping.
  static constexpr const char* kMemfdName = "spindle-guest-ram";

  /// `bytes`: see check_size(). Reserves address space, no memory.
  static Result<std::unique_ptr<GuestRam>> create(uint64_t bytes);
  ~GuestRam();
  GuestRam(const GuestRam&) = delete;
  GuestRam& operator=(const GuestRam&) = delete;

  /// Invalid unless a multiple of 1 MiB from 64 MiB to 1 TiB. The error is for the user.
  static Result<> check_size(uint64_t bytes);

  /// Invalid if this host has less memory and swap than that: such a guest would be killed as it grows.
  static Result<> check_host(uint64_t bytes);

  uint64_t size() const { return size_; }
  /// RAM from address 0 up; the rest, if any, starts at 4 GiB.
  uint64_t low_size() const;
  int fd() const { return fd_.get(); }
  const GuestMemory& memory() const { return memory_; }
  std::vector<MemoryMapEntry> memory_map() const;
  /// Makes it the memory of `vm`, slots 0 and 1.
  Result<> attach(Vm& vm) const;

 private:
  GuestRam(Fd fd, uint8_t* host, uint64_t size);

  Fd fd_;
  uint8_t* host_;
  uint64_t size_;
  GuestMemory memory_;
};

}  // namespace spindle::vmm
