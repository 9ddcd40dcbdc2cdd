// TaskFile: the command block registers of one drive, each with its previous value.
//
// The registers that carry 48-bit values are two deep: a write pushes the old value down, and the HOB bit of
// Device Control shows that lower half to reads (ATA/ATAPI-6, 6.20). A command takes a copy of the whole, so
// nothing the host writes later can change what it does.
#pragma once

#include <cstdint>

#include "devices/ide/ata.h"

namespace spindle::ide {

struct TaskFile {
  struct Register {
    uint8_t current = 0;
    uint8_t previous = 0;
    void push(uint8_t value) {
      previous = current;
      current = value;
    }
    uint16_t both() const { return static_cast<uint16_t>(previous << 8 | current); }
  };

  Register features, count, lba_low, lba_mid, lba_high;
  uint8_t device = 0;

  bool lba_addressing() const { return device & kDeviceLba; }

  uint64_t lba28() const {
    return static_cast<uint64_t>(device & kDeviceHead) << 24 | lba_high.current << 16 | lba_mid.current << 8 |
           lba_low.current;
  }
  uint64_t lba48() const {
    const uint64_t high =
        static_cast<uint64_t>(lba_high.previous) << 16 | lba_mid.previous << 8 | lba_low.previous;
    const uint64_t low =
        static_cast<uint64_t>(lba_high.current) << 16 | lba_mid.current << 8 | lba_low.current;
    return high << 24 | low;
  }

  void set_lba28(uint64_t lba) {
    set_low24(lba);
    device = static_cast<uint8_t>((device & ~kDeviceHead) | (lba >> 24 & kDeviceHead));
  }
  void set_lba48(uint64_t lba) {
    set_low24(lba);
    lba_low.previous = static_cast<uint8_t>(lba >> 24);
    lba_mid.previous = static_cast<uint8_t>(lba >> 32);
    lba_high.previous = static_cast<uint8_t>(lba >> 40);
  }

 private:
  void set_low24(uint64_t lba) {
    lba_low.current = static_cast<uint8_t>(lba);
    lba_mid.current = static_cast<uint8_t>(lba >> 8);
    lba_high.current = static_cast<uint8_t>(lba >> 16);
  }
};

}  // namespace spindle::ide
