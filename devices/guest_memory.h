// GuestMemory: the guest's RAM as the devices see it: ranges of guest-physical addresses mapped into this
// process.
//
// Everything a guest puts here, and every address it names, is data from an enemy: at() and append() check
// each range with overflow in mind and answer with nothing rather than with memory that is not RAM. The guest
// may change what it shares at any time, so a device copies a descriptor before it validates it (read_object
// does).
//
// Immutable once the machine runs, so any thread may use it.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

namespace spindle {

class GuestMemory {
 public:
  struct Region {
    uint64_t guest_address;
    uint64_t size;
    uint8_t* host;
  };

  GuestMemory() = default;
  /// Regions neither overlap nor wrap around. The memory outlives this object.
  explicit GuestMemory(std::vector<Region> regions) : regions_(std::move(regions)) {}

  std::span<const Region> regions() const { return regions_; }

  /// The `length` bytes at `address`, if they lie in one region of RAM. Null otherwise; never null for length
  /// 0 in RAM.
  uint8_t* at(uint64_t address, uint64_t length) const {
    for (const Region& region : regions_) {
      const uint64_t offset =
          address - region.guest_address;  // wraps for an address below: then larger than size
      if (offset < region.size && length <= region.size - offset) return region.host + offset;
    }
    return nullptr;
  }

  /// Copies a T out of guest memory, or nullopt if it does not lie in RAM.
  template <typename T>
  requires std::is_trivially_copyable_v<T> std::optional<T> read_object(uint64_t address)
  const {
    const uint8_t* host = at(address, sizeof(T));
    if (!host) return std::nullopt;
    T value;
    std::memcpy(&value, host, sizeof value);
    return value;
  }

  /// False, and nothing written, if it does not lie in RAM.
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  bool write_object(uint64_t address, const T& value) const {
    uint8_t* host = at(address, sizeof(T));
    if (!host) return false;
    std::memcpy(host, &value, sizeof value);
    return true;
  }

  /// Appends the memory of [address, address + length) to `parts`. False, and nothing appended, if it is not
  /// all RAM.
  bool append(std::vector<iovec>& parts, uint64_t address, uint64_t length) const {
    uint8_t* host = at(address, length);
    if (!host) return false;
    parts.push_back({host, static_cast<size_t>(length)});
    return true;
  }

 private:
  std::vector<Region> regions_;
};

}  // namespace spindle
