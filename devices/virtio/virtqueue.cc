#include "devices/virtio/virtqueue.h"

namespace spindle::virtio {

std::string_view Virtqueue::check(const QueueLayout& layout, const GuestMemory& memory, RingFeatures features,
                                  uint32_t max_size) {
  if (layout.size == 0) return "queue size is 0";
  if (layout.size > max_size || layout.size > kLargestQueue) return "queue size is larger than the device's";
  return features.packed ? PackedRing::check(layout, memory) : SplitRing::check(layout, memory);
}

std::string_view Virtqueue::enable(const QueueLayout& layout, const GuestMemory& memory,
                                   RingFeatures features, uint32_t max_size, uint32_t max_chain) {
  enabled_ = false;
  if (const auto wrong = check(layout, memory, features, max_size); !wrong.empty()) return wrong;
  if (features.packed) {
    ring_.emplace<PackedRing>(layout, memory, features, max_chain);
  } else {
    ring_.emplace<SplitRing>(layout, memory, features, max_chain);
  }
  enabled_ = true;
  return {};
}

}  // namespace spindle::virtio
