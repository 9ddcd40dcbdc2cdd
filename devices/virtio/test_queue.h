// A driver's queue, of either kind. Tests that do not name one run with both: they are compiled into two
// programs, and SPINDLE_TEST_PACKED_RINGS says which kind the rigs of a program use.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "devices/virtio/test_packed_queue.h"
#include "devices/virtio/test_split_queue.h"

namespace spindle::virtio::test {

#ifdef SPINDLE_TEST_PACKED_RINGS
inline constexpr bool kPackedRings = true;
#else
inline constexpr bool kPackedRings = false;
#endif
/// What a driver acknowledges for such queues.
inline constexpr uint64_t kRingKind = kFeatureVersion1 | (kPackedRings ? kFeatureRingPacked : 0);

using TestQueues = std::variant<SplitTestQueue, PackedTestQueue>;

template <typename Queues, typename Verb>
decltype(auto) with_queue(Queues& queues, Verb verb) {
  if (auto* packed = std::get_if<PackedTestQueue>(&queues)) return verb(*packed);
  return verb(*std::get_if<SplitTestQueue>(&queues));
}

/// Chains are added, then shown to the device together.
class TestQueue {
 public:
  TestQueue(TestRam& ram, uint32_t size, bool event_idx, bool packed = kPackedRings)
      : queue_(packed ? TestQueues(std::in_place_type<PackedTestQueue>, ram, size, event_idx)
                      : TestQueues(std::in_place_type<SplitTestQueue>, ram, size, event_idx)) {}

  const QueueLayout& layout() const {
    return with_queue(queue_, [](auto& queue) -> const QueueLayout& { return queue.layout(); });
  }
  uint32_t size() const { return layout().size; }
  uint32_t free_descriptors() const {
    return with_queue(queue_, [](auto& queue) { return queue.free_descriptors(); });
  }
  /// What a used element will name it by; nullopt if there is no room.
  std::optional<uint16_t> add(std::span<const Segment> segments) {
    return with_queue(queue_, [&](auto& queue) { return queue.add(segments); });
  }
  std::optional<uint16_t> add_indirect(std::span<const Segment> segments, uint64_t table) {
    return with_queue(queue_, [&](auto& queue) { return queue.add_indirect(segments, table); });
  }
  bool publish() {
    return with_queue(queue_, [](auto& queue) { return queue.publish(); });
  }
  std::optional<UsedElement> take() {
    return with_queue(queue_, [](auto& queue) { return queue.take(); });
  }
  uint16_t used_waiting() const {
    return with_queue(queue_, [](auto& queue) { return queue.used_waiting(); });
  }
  void want_interrupt(uint16_t more = 1) {
    with_queue(queue_, [&](auto& queue) { queue.want_interrupt(more); });
  }
  void want_no_interrupt() {
    with_queue(queue_, [](auto& queue) { queue.want_no_interrupt(); });
  }
  /// Makes available what no device can follow.
  void spoil() {
    with_queue(queue_, [](auto& queue) { queue.spoil(); });
  }

 private:
  TestQueues queue_;
};

}  // namespace spindle::virtio::test
