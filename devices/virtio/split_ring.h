// SplitRing: a split virtqueue (virtio 1.2, 2.7): a descriptor table whose chains the driver lists in an
// available ring and the device in a used ring.
#pragma once

#include <cstdint>
#include <string_view>

#include "devices/virtio/ring.h"

namespace spindle::virtio {

class SplitRing : public Ring {
 public:
  static std::string_view check(const QueueLayout& layout, const GuestMemory& memory);

  SplitRing() = default;
  /// `layout` was checked.
  SplitRing(const QueueLayout& layout, const GuestMemory& memory, RingFeatures features, uint32_t max_chain);

  Pop pop(Chain& chain);
  void push(ChainToken token, uint32_t written);
  bool publish();
  void suppress_notifications();
  bool enable_notifications();
  uint16_t next_available() const { return next_available_; }

 private:
  Pop follow(Chain& chain, uint16_t head);

  const uint8_t* descriptors_ = nullptr;
  uint16_t* available_ = nullptr;  // flags, idx, ring[size], used_event
  uint8_t* used_ = nullptr;        // flags, idx, ring[size], avail_event
  uint16_t available_seen_ = 0;    // the available index as last loaded
  uint16_t next_available_ = 0;
  uint16_t next_used_ = 0;
  uint16_t published_ = 0;  // the used index the driver sees
};

}  // namespace spindle::virtio
