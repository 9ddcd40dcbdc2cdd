// RAM of a guest in process, and what a driver calls a buffer in it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "devices/guest_memory.h"

namespace spindle::virtio::test {

/// RAM that does not begin at guest address 0, so that host, guest and offset cannot be taken for one
/// another.
class TestRam {
 public:
  static constexpr uint64_t kBase = 0x10'0000;

  explicit TestRam(uint64_t bytes = 4 << 20)
      : bytes_(bytes), host_(static_cast<uint8_t*>(std::aligned_alloc(4096, bytes)), &std::free) {
    std::memset(host_.get(), 0, bytes);
    memory_ = GuestMemory({{.guest_address = kBase, .size = bytes, .host = host_.get()}});
  }

  const GuestMemory& memory() const { return memory_; }
  uint64_t end() const { return kBase + bytes_; }
  /// The guest address of fresh zeroed bytes. They are never given back.
  uint64_t allocate(uint64_t bytes, uint64_t alignment = 16) {
    next_ = (next_ + alignment - 1) / alignment * alignment;
    const uint64_t result = next_;
    next_ += bytes;
    if (next_ > data_next_) std::abort();
    return result;
  }
  /// The same for data, from the other end of memory, so that what the driver writes about its requests lies
  /// close together, as in a real one.
  uint64_t allocate_data(uint64_t bytes, uint64_t alignment) {
    data_next_ = (data_next_ - bytes) / alignment * alignment;
    if (next_ > data_next_) std::abort();
    return data_next_;
  }
  template <typename T = uint8_t>
  T* at(uint64_t address) {
    return reinterpret_cast<T*>(host_.get() + (address - kBase));
  }

 private:
  uint64_t bytes_;
  std::unique_ptr<uint8_t, decltype(&std::free)> host_;
  GuestMemory memory_;
  uint64_t next_ = kBase;
  uint64_t data_next_ = kBase + bytes_;
};

struct Segment {
  uint64_t address = 0;
  uint32_t length = 0;
  bool writable = false;
};

}  // namespace spindle::virtio::test
