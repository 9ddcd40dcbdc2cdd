// A driver's side of a split queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "devices/virtio/spec.h"
#include "devices/virtio/test_ram.h"
#include "devices/virtio/virtqueue.h"

namespace spindle::virtio::test {

/// A driver's split queue. Chains are added, then shown to the device together.
class SplitTestQueue {
 public:
  SplitTestQueue(TestRam& ram, uint32_t size, bool event_idx)
      : ram_(ram), size_(size), event_idx_(event_idx), chain_length_(size) {
    layout_.size = size;
    layout_.descriptors = ram.allocate(descriptor_table_bytes(size));
    layout_.driver_area = ram.allocate(available_ring_bytes(size));
    layout_.device_area = ram.allocate(used_ring_bytes(size));
    descriptors_ = ram.at<Descriptor>(layout_.descriptors);
    available_ = ram.at<uint16_t>(layout_.driver_area);
    used_ = ram.at<uint16_t>(layout_.device_area);
    for (uint32_t i = size; i-- > 0;) free_.push_back(static_cast<uint16_t>(i));
  }

  const QueueLayout& layout() const { return layout_; }
  uint32_t size() const { return size_; }
  uint32_t free_descriptors() const { return static_cast<uint32_t>(free_.size()); }

  /// The head of a chain made of the queue's own descriptors, or nullopt if there are too few.
  std::optional<uint16_t> add(std::span<const Segment> segments) {
    if (segments.empty() || segments.size() > free_.size()) return std::nullopt;
    const uint16_t head = free_.back();
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const uint16_t index = free_.back();
      free_.pop_back();
      const bool last = i + 1 == segments.size();
      descriptors_[index] = describe(segments[i], last ? 0 : free_.back(), last);
    }
    chain_length_[head] = static_cast<uint16_t>(segments.size());
    offer(head);
    return head;
  }
  /// The same through an indirect table, for which the caller has room at `table`.
  std::optional<uint16_t> add_indirect(std::span<const Segment> segments, uint64_t table) {
    if (free_.empty()) return std::nullopt;
    auto* entries = ram_.at<Descriptor>(table);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const bool last = i + 1 == segments.size();
      entries[i] = describe(segments[i], last ? 0 : static_cast<uint16_t>(i + 1), last);
    }
    const uint16_t head = free_.back();
    free_.pop_back();
    descriptors_[head] = {table, static_cast<uint32_t>(segments.size() * sizeof(Descriptor)), kDescIndirect,
                          0};
    chain_length_[head] = 1;
    offer(head);
    return head;
  }

  /// Shows the device what was added. True if it wants to be notified.
  bool publish() {
    const uint16_t before = available_published_;
    available_published_ = available_next_;
    std::atomic_ref(available_[1]).store(available_published_, std::memory_order_seq_cst);
    if (event_idx_) {
      const uint16_t event = std::atomic_ref(used_[2 + 4 * size_]).load(std::memory_order_seq_cst);
      return static_cast<uint16_t>(available_published_ - event - 1) <
             static_cast<uint16_t>(available_published_ - before);
    }
    return !(std::atomic_ref(used_[0]).load(std::memory_order_seq_cst) & kUsedNoNotify);
  }

  /// The next used element, in the device's order; its descriptors are free again.
  std::optional<UsedElement> take() {
    if (std::atomic_ref(used_[1]).load(std::memory_order_acquire) == used_next_) return std::nullopt;
    UsedElement element;
    std::memcpy(&element, used_ + 2 + 4 * (used_next_ % size_), sizeof element);
    ++used_next_;
    auto index = static_cast<uint16_t>(element.id);
    for (unsigned left = chain_length_[index]; left > 0; --left) {
      free_.push_back(index);
      index = descriptors_[index].next;
    }
    return element;
  }
  /// How many used elements wait.
  uint16_t used_waiting() const {
    return static_cast<uint16_t>(std::atomic_ref(used_[1]).load(std::memory_order_acquire) - used_next_);
  }

  /// Asks for an interrupt after `more` further used elements (event idx), or after any.
  void want_interrupt(uint16_t more = 1) {
    std::atomic_ref(available_[2 + size_])
        .store(static_cast<uint16_t>(used_next_ + more - 1), std::memory_order_relaxed);
    std::atomic_ref(available_[0]).store(0, std::memory_order_seq_cst);
  }
  void want_no_interrupt() {
    std::atomic_ref(available_[2 + size_])
        .store(static_cast<uint16_t>(used_next_ - 1), std::memory_order_relaxed);
    std::atomic_ref(available_[0]).store(kAvailNoInterrupt, std::memory_order_relaxed);
  }

  // For tests that break the rules.
  void spoil() { set_available_index(static_cast<uint16_t>(available_published_ + size_ + 1)); }
  Descriptor& descriptor(uint32_t index) { return descriptors_[index]; }
  void offer(uint16_t head) { available_[2 + (available_next_++ % size_)] = head; }
  void set_available_index(uint16_t index) {
    std::atomic_ref(available_[1]).store(index, std::memory_order_release);
  }

 private:
  static Descriptor describe(const Segment& segment, uint16_t next, bool last) {
    const int flags = (segment.writable ? kDescWrite : 0) | (last ? 0 : kDescNext);
    return {segment.address, segment.length, static_cast<uint16_t>(flags), next};
  }

  TestRam& ram_;
  uint32_t size_;
  bool event_idx_;
  QueueLayout layout_;
  Descriptor* descriptors_;
  uint16_t* available_;
  uint16_t* used_;
  std::vector<uint16_t> free_;
  std::vector<uint16_t> chain_length_;
  uint16_t available_next_ = 0;
  uint16_t available_published_ = 0;
  uint16_t used_next_ = 0;
};

}  // namespace spindle::virtio::test
