#include "devices/virtio/virtqueue.h"

#include <atomic>
#include <bit>
#include <cassert>
#include <cstring>

namespace spindle::virtio {
namespace {

constexpr uint64_t kMaxBytes = 0xffffffff;  // what a used element can report

uint16_t load(const uint16_t* field, std::memory_order order) {
  return std::atomic_ref(*const_cast<uint16_t*>(field)).load(order);
}
void store(uint16_t* field, uint16_t value, std::memory_order order) {
  std::atomic_ref(*field).store(value, order);
}

// The fence keeps the compiler from reading the guest's memory a second time instead of the copy.
Descriptor copy_descriptor(const uint8_t* table, uint32_t index) {
  Descriptor copy;
  std::memcpy(&copy, table + sizeof(Descriptor) * index, sizeof copy);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return copy;
}

// Did the index move past `event` on its way from `before` to `now`? (2.7.7.2)
bool crossed(uint16_t event, uint16_t now, uint16_t before) {
  return static_cast<uint16_t>(now - event - 1) < static_cast<uint16_t>(now - before);
}

bool aligned(uint64_t address, uint64_t to) {
  return address % to == 0;
}

// False if the buffer does not lie in RAM. An empty buffer is legal (the standard forbids none) and adds
// nothing, wherever it claims to lie.
bool add(Chain& chain, const Descriptor& descriptor, const GuestMemory& memory) {
  const bool writable = descriptor.flags & kDescWrite;
  if (descriptor.length == 0) return true;
  uint8_t* host = memory.at(descriptor.address, descriptor.length);
  if (writable) {
    chain.last_writable = host ? host + descriptor.length - 1 : nullptr;
    chain.writable_bytes += descriptor.length;
  } else {
    chain.readable_bytes += descriptor.length;
  }
  if (!host) return false;
  chain.parts.push_back({host, descriptor.length});
  if (!writable) chain.readable_parts = static_cast<uint32_t>(chain.parts.size());
  return true;
}

}  // namespace

std::string_view Virtqueue::check(const QueueLayout& layout, const GuestMemory& memory, uint32_t max_size) {
  if (layout.size == 0 || !std::has_single_bit(layout.size)) return "queue size is not a power of two";
  if (layout.size > max_size || layout.size > kLargestQueue) return "queue size is larger than the device's";
  if (!aligned(layout.descriptors, 16)) return "descriptor table is not aligned to 16";
  if (!aligned(layout.driver_area, 2)) return "available ring is not aligned to 2";
  if (!aligned(layout.device_area, 4)) return "used ring is not aligned to 4";
  if (!memory.at(layout.descriptors, descriptor_table_bytes(layout.size)))
    return "descriptor table does not lie in RAM";
  if (!memory.at(layout.driver_area, available_ring_bytes(layout.size)))
    return "available ring does not lie in RAM";
  if (!memory.at(layout.device_area, used_ring_bytes(layout.size))) return "used ring does not lie in RAM";
  return {};
}

std::string_view Virtqueue::enable(const QueueLayout& layout, const GuestMemory& memory,
                                   RingFeatures features, uint32_t max_size, uint32_t max_chain) {
  enabled_ = false;
  if (const auto wrong = check(layout, memory, max_size); !wrong.empty()) return wrong;
  memory_ = &memory;
  descriptors_ = memory.at(layout.descriptors, descriptor_table_bytes(layout.size));
  available_ = reinterpret_cast<uint16_t*>(memory.at(layout.driver_area, available_ring_bytes(layout.size)));
  used_ = memory.at(layout.device_area, used_ring_bytes(layout.size));
  size_ = layout.size;
  max_chain_ = max_chain;
  features_ = features;
  available_seen_ = next_available_ = layout.next_available;
  next_used_ = published_ = layout.next_used;
  outstanding_ = 0;
  broken_ = {};
  enabled_ = true;
  return {};
}

Pop Virtqueue::fail(std::string_view reason) {
  broken_ = reason;
  return Pop::Broken;
}

Pop Virtqueue::pop(Chain& chain) {
  if (!enabled_) return Pop::Empty;
  if (!broken_.empty()) return Pop::Broken;
  if (next_available_ == available_seen_) {
    available_seen_ = load(available_ + 1, std::memory_order_acquire);
    const auto fresh = static_cast<uint16_t>(available_seen_ - next_available_);
    if (fresh == 0) return Pop::Empty;
    if (fresh > size_) return fail("the available index jumped by more than the queue's size");
  }
  // All descriptors may be out, one chain each; more can only be a head that was made available twice. This
  // bounds what a guest can make us hold.
  if (outstanding_ == size_) return fail("more chains are available than the queue has descriptors");
  const uint16_t head = load(available_ + 2 + (next_available_ & (size_ - 1)), std::memory_order_relaxed);
  if (head >= size_) return fail("the available ring names a descriptor out of range");
  if (const Pop result = follow(chain, head); result != Pop::Taken) return result;
  ++next_available_;
  ++outstanding_;
  return Pop::Taken;
}

Pop Virtqueue::follow(Chain& chain, uint16_t head) {
  chain.token = {head};
  chain.fault = ChainFault::None;
  chain.readable_parts = 0;
  chain.readable_bytes = chain.writable_bytes = 0;
  chain.parts.clear();
  chain.last_writable = nullptr;

  const uint8_t* table = descriptors_;
  uint32_t entries = size_;
  uint32_t index = head;
  // A chain longer than its table must loop; max_chain bounds chains that continue in an indirect table.
  uint32_t left_in_table = size_;
  uint32_t left = max_chain_;
  bool writable_seen = false;
  for (;;) {
    if (left_in_table-- == 0) return fail("a descriptor chain loops");
    const Descriptor descriptor = copy_descriptor(table, index);
    if (descriptor.flags & kDescIndirect) {
      if (!features_.indirect) return fail("an indirect descriptor without the feature");
      if (table != descriptors_) return fail("an indirect descriptor inside an indirect table");
      if (descriptor.flags & kDescNext) return fail("an indirect descriptor that has a next one");
      if (descriptor.length == 0 || descriptor.length % sizeof(Descriptor) != 0)
        return fail("the length of an indirect table is no multiple of 16");
      table = memory_->at(descriptor.address, descriptor.length);
      if (!table) return fail("an indirect table does not lie in RAM");
      entries = left_in_table = descriptor.length / sizeof(Descriptor);
      index = 0;
      continue;
    }
    if (left-- == 0) return fail("a descriptor chain is too long");
    if (descriptor.flags & kDescWrite) {
      writable_seen = true;
    } else if (writable_seen) {
      chain.fault = ChainFault::ReadableAfterWritable;
    }
    if (!add(chain, descriptor, *memory_) && chain.fault == ChainFault::None)
      chain.fault = ChainFault::OutsideRam;
    if (!(descriptor.flags & kDescNext)) break;
    if (descriptor.next >= entries) return fail("a descriptor's next one is out of range");
    index = descriptor.next;
  }
  if (chain.fault == ChainFault::None &&
      (chain.readable_bytes > kMaxBytes || chain.writable_bytes > kMaxBytes)) {
    chain.fault = ChainFault::TooManyBytes;
  }
  return Pop::Taken;
}

void Virtqueue::push(ChainToken token, uint32_t written) {
  assert(outstanding_ > 0);
  const UsedElement element{token.id, written};
  std::memcpy(used_ + 4 + sizeof element * (next_used_ & (size_ - 1)), &element, sizeof element);
  ++next_used_;
  --outstanding_;
}

bool Virtqueue::publish() {
  if (next_used_ == published_) return false;
  const uint16_t before = published_;
  published_ = next_used_;
  // The driver writes its wish and then looks at the index again; we do the reverse. One of us sees it.
  store(reinterpret_cast<uint16_t*>(used_) + 1, published_, std::memory_order_seq_cst);
  if (features_.event_idx) {
    const uint16_t event = load(available_ + 2 + size_, std::memory_order_seq_cst);
    return crossed(event, published_, before);
  }
  return !(load(available_, std::memory_order_seq_cst) & kAvailNoInterrupt);
}

void Virtqueue::suppress_notifications() {
  if (!enabled_ || features_.event_idx) return;  // the event index lies behind us: no notification is due
  store(reinterpret_cast<uint16_t*>(used_), kUsedNoNotify, std::memory_order_relaxed);
}

bool Virtqueue::enable_notifications() {
  if (!enabled_ || !broken_.empty()) return false;
  if (features_.event_idx) {
    auto* event = reinterpret_cast<uint16_t*>(used_ + 4 + sizeof(UsedElement) * size_);
    store(event, next_available_, std::memory_order_seq_cst);
  } else {
    store(reinterpret_cast<uint16_t*>(used_), 0, std::memory_order_seq_cst);
  }
  return load(available_ + 1, std::memory_order_seq_cst) != next_available_;
}

}  // namespace spindle::virtio
