// A driver's side of a packed queue (2.8).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "devices/virtio/spec.h"
#include "devices/virtio/test_ram.h"
#include "devices/virtio/virtqueue.h"

namespace spindle::virtio::test {

/// Chains are added, then shown to the device together: the flags of the first descriptor wait for publish().
class PackedTestQueue {
 public:
  PackedTestQueue(TestRam& ram, uint32_t size, bool event_idx)
      : ram_(ram), size_(size), event_idx_(event_idx), free_slots_(size), chain_length_(size) {
    layout_.size = size;
    layout_.descriptors = ram.allocate(descriptor_table_bytes(size));
    layout_.driver_area = ram.allocate(kEventSuppressionBytes);
    layout_.device_area = ram.allocate(kEventSuppressionBytes);
    ring_ = ram.at<PackedDescriptor>(layout_.descriptors);
    driver_event_ = ram.at<uint32_t>(layout_.driver_area);
    device_event_ = ram.at<uint32_t>(layout_.device_area);
    for (uint32_t i = size; i-- > 0;) free_ids_.push_back(static_cast<uint16_t>(i));
  }

  const QueueLayout& layout() const { return layout_; }
  uint32_t size() const { return size_; }
  uint32_t free_descriptors() const { return free_slots_; }

  /// The buffer id of a chain made of the ring's own descriptors, or nullopt if there are too few.
  std::optional<uint16_t> add(std::span<const Segment> segments) {
    if (segments.empty() || segments.size() > free_slots_) return std::nullopt;
    const uint16_t id = take_id(static_cast<uint32_t>(segments.size()));
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const bool last = i + 1 == segments.size();
      const int flags = (segments[i].writable ? kDescWrite : 0) | (last ? 0 : kDescNext);
      // Only the last one's id counts.
      offer({segments[i].address, segments[i].length, last ? id : uint16_t{0xffff},
             static_cast<uint16_t>(flags)});
    }
    return id;
  }
  /// The same through an indirect table, for which the caller has room at `table`.
  std::optional<uint16_t> add_indirect(std::span<const Segment> segments, uint64_t table) {
    if (free_slots_ == 0) return std::nullopt;
    auto* entries = ram_.at<PackedDescriptor>(table);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      entries[i] = {segments[i].address, segments[i].length, 0xffff,
                    segments[i].writable ? kDescWrite : uint16_t{0}};
    }
    const uint16_t id = take_id(1);
    offer({table, static_cast<uint32_t>(segments.size() * sizeof(PackedDescriptor)), id, kDescIndirect});
    return id;
  }

  /// Shows the device what was added. True if it wants to be notified.
  bool publish() {
    if (added_ == 0) return false;
    const auto passed = static_cast<int64_t>(added_);
    added_ = 0;
    std::atomic_ref(ring_[first_].flags).store(first_flags_, std::memory_order_seq_cst);
    const uint32_t wish = std::atomic_ref(*device_event_).load(std::memory_order_seq_cst);
    if (wish >> 16 != kPackedEventDesc) return wish >> 16 == kPackedEventEnable;
    int64_t behind = int64_t{next_} - (wish & 0x7fff);
    if ((wish >> kPackedWrapBit & 1) != wrap_) behind += size_;
    return behind > 0 && behind <= passed;
  }

  /// The next used element, in the device's order; its descriptors are free again.
  std::optional<UsedElement> take() {
    if (!used(used_next_, used_wrap_)) return std::nullopt;
    const PackedDescriptor entry = ring_[used_next_];
    const uint32_t length = chain_length_[entry.id];
    free_ids_.push_back(entry.id);
    free_slots_ += length;
    step(used_next_, used_wrap_, length);
    return UsedElement{entry.id, entry.length};
  }
  /// How many used elements wait.
  uint16_t used_waiting() const {
    uint32_t index = used_next_, wrap = used_wrap_;
    uint16_t count = 0;
    for (uint32_t seen = 0; seen < size_ - free_slots_ && used(index, wrap); ++count) {
      const uint32_t length = chain_length_[ring_[index].id];
      seen += length;
      step(index, wrap, length);
    }
    return count;
  }

  /// Asks for an interrupt after `more` further used elements, if all chains are as long as the last one
  /// added (event idx), or after any.
  void want_interrupt(uint16_t more = 1) {
    uint32_t wish = uint32_t{kPackedEventEnable} << 16;
    if (event_idx_) {
      uint32_t index = used_next_, wrap = used_wrap_;
      step(index, wrap, (more - 1) * last_length_);
      wish = uint32_t{kPackedEventDesc} << 16 | wrap << kPackedWrapBit | index;
    }
    std::atomic_ref(*driver_event_).store(wish, std::memory_order_seq_cst);
  }
  void want_no_interrupt() {
    std::atomic_ref(*driver_event_).store(uint32_t{kPackedEventDisable} << 16, std::memory_order_seq_cst);
  }

  // For tests that break the rules.
  /// Puts a descriptor into the ring, the bits AVAIL and USED added to its flags.
  void offer(PackedDescriptor descriptor) {
    const int owner = wrap_ ? kPackedDescAvail : kPackedDescUsed;
    const auto flags = static_cast<uint16_t>(descriptor.flags | owner);
    PackedDescriptor& entry = ring_[next_];
    std::memcpy(&entry, &descriptor, offsetof(PackedDescriptor, flags));
    if (added_++ == 0) {
      first_ = next_;
      first_flags_ = flags;
    } else {
      std::atomic_ref(entry.flags).store(flags, std::memory_order_relaxed);
    }
    step(next_, wrap_, 1);
  }
  void spoil() {
    for (uint32_t i = 0; i < size_; ++i) offer({0, 0, 0, kDescNext});
    publish();
  }
  PackedDescriptor& descriptor(uint32_t index) { return ring_[index]; }
  void set_driver_event(uint32_t value) { std::atomic_ref(*driver_event_).store(value); }
  /// What the device wrote: position and wrap counter in the low half, flags in the high one.
  uint32_t device_event() const { return std::atomic_ref(*device_event_).load(); }

 private:
  uint16_t take_id(uint32_t length) {
    const uint16_t id = free_ids_.back();
    free_ids_.pop_back();
    free_slots_ -= length;
    chain_length_[id] = last_length_ = length;
    return id;
  }
  bool used(uint32_t index, uint32_t wrap) const {
    const uint16_t flags = std::atomic_ref(ring_[index].flags).load(std::memory_order_acquire);
    return (flags & kPackedDescAvail) / kPackedDescAvail == static_cast<int>(wrap) &&
           (flags & kPackedDescUsed) / kPackedDescUsed == static_cast<int>(wrap);
  }
  void step(uint32_t& index, uint32_t& wrap, uint32_t count) const {
    index += count;
    if (index >= size_) {
      index -= size_;
      wrap ^= 1;
    }
  }

  TestRam& ram_;
  uint32_t size_;
  bool event_idx_;
  uint32_t free_slots_;
  QueueLayout layout_;
  PackedDescriptor* ring_;
  uint32_t* driver_event_;
  uint32_t* device_event_;
  std::vector<uint16_t> free_ids_;
  std::vector<uint32_t> chain_length_;
  uint32_t last_length_ = 1;
  uint32_t next_ = 0, wrap_ = 1;
  uint32_t added_ = 0, first_ = 0;
  uint16_t first_flags_ = 0;
  uint32_t used_next_ = 0, used_wrap_ = 1;
};

}  // namespace spindle::virtio::test
