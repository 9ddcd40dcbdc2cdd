// Ring: what the two kinds of virtqueue have in common: where they lie, what was acknowledged, and when they
// are beyond use. SplitRing and PackedRing add the verbs that virtqueue.h describes; it alone uses them.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>

#include "devices/guest_memory.h"
#include "devices/virtio/chain.h"
#include "devices/virtio/spec.h"

namespace spindle::virtio {

/// Where a queue lies in guest memory, and where to begin (at its first entries after a reset; another
/// transport or a restored machine may begin in the middle).
struct QueueLayout {
  uint32_t size = 0;  ///< descriptors; of a split queue a power of two
  uint64_t descriptors = 0;
  uint64_t driver_area = 0;  ///< split: the available ring; packed: the driver event suppression
  uint64_t device_area = 0;  ///< split: the used ring; packed: the device event suppression
  /// split: an index; packed: a position, with the wrap counter in bit 15.
  std::optional<uint16_t> next_available = std::nullopt;
  std::optional<uint16_t> next_used = std::nullopt;
};

/// What the engine must know of the features that were acknowledged.
struct RingFeatures {
  bool indirect = false;
  bool event_idx = false;
  bool packed = false;
};

enum class Pop : uint8_t {
  Empty,   ///< nothing is available now
  Taken,   ///< the chain was filled in; give it back by push()
  Broken,  ///< the queue is unusable until it is enabled anew; see broken_reason()
};

class Ring {
 public:
  void declare_broken(std::string_view reason) { broken_ = reason; }
  std::string_view broken_reason() const { return broken_; }
  bool broken() const { return !broken_.empty(); }
  uint32_t outstanding() const { return outstanding_; }

 protected:
  Ring() = default;
  Ring(const QueueLayout& layout, const GuestMemory& memory, RingFeatures features, uint32_t max_chain)
      : memory_(&memory), size_(layout.size), max_chain_(max_chain), features_(features) {}

  Pop fail(std::string_view reason) {
    broken_ = reason;
    return Pop::Broken;
  }

  static bool aligned(uint64_t address, uint64_t to) { return address % to == 0; }

  template <typename Field>
  static Field load(const Field* field, std::memory_order order) {
    return std::atomic_ref(*const_cast<Field*>(field)).load(order);
  }
  template <typename Field>
  static void store(Field* field, std::type_identity_t<Field> value, std::memory_order order) {
    std::atomic_ref(*field).store(value, order);
  }
  // The fence keeps the compiler from reading the guest's memory a second time instead of the copy.
  template <typename Entry>
  static Entry copy_entry(const uint8_t* table, uint32_t index) {
    Entry copy;
    std::memcpy(&copy, table + sizeof(Entry) * index, sizeof copy);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return copy;
  }

  const GuestMemory* memory_ = nullptr;
  uint32_t size_ = 0;
  uint32_t max_chain_ = 0;
  RingFeatures features_;
  uint32_t outstanding_ = 0;  // chains
  std::string_view broken_;
};

}  // namespace spindle::virtio
