// ByteRegisters: the chips of the ISA era have registers of one byte. An access that is wider is that many
// accesses to neighbouring registers, lowest first, as an 8-bit card on the bus would see it.
//
// Locking: the chip's mutex is held over the whole access, so a word access is one thing to other vCPUs.
#pragma once

#include <mutex>

#include "devices/bus.h"

namespace spindle::legacy {

class ByteRegisters : public IoHandler {
 public:
  void read(uint64_t offset, std::span<uint8_t> data) final {
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = read_byte(static_cast<unsigned>(offset + i));
  }
  std::shared_ptr<ParkedAccess> write(uint64_t offset, std::span<const uint8_t> data) final {
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < data.size(); ++i) write_byte(static_cast<unsigned>(offset + i), data[i]);
    return nullptr;
  }
  void read_repeated(uint64_t offset, std::span<uint8_t> data, std::size_t width) final {
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < data.size(); ++i)
      data[i] = read_byte(static_cast<unsigned>(offset + i % width));
  }
  void write_repeated(uint64_t offset, std::span<const uint8_t> data, std::size_t width) final {
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < data.size(); ++i)
      write_byte(static_cast<unsigned>(offset + i % width), data[i]);
  }

 protected:
  // Under the mutex.
  virtual uint8_t read_byte(unsigned offset) = 0;
  virtual void write_byte(unsigned offset, uint8_t value) = 0;

  std::mutex mutex_;
};

}  // namespace spindle::legacy
