#include "devices/virtio/split_ring.h"

#include <bit>

namespace spindle::virtio {
namespace {

// Did the index move past `event` on its way from `before` to `now`? (2.7.7.2)
bool crossed(uint16_t event, uint16_t now, uint16_t before) {
  return static_cast<uint16_t>(now - event - 1) < static_cast<uint16_t>(now - before);
}

}  // namespace

std::string_view SplitRing::check(const QueueLayout& layout, const GuestMemory& memory) {
  if (!std::has_single_bit(layout.size)) return "queue size is not a power of two";
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

SplitRing::SplitRing(const QueueLayout& layout, const GuestMemory& memory, RingFeatures features,
                     uint32_t max_chain)
    : Ring(layout, memory, features, max_chain),
      descriptors_(memory.at(layout.descriptors, descriptor_table_bytes(layout.size))),
      available_(
          reinterpret_cast<uint16_t*>(memory.at(layout.driver_area, available_ring_bytes(layout.size)))),
      used_(memory.at(layout.device_area, used_ring_bytes(layout.size))),
      available_seen_(layout.next_available.value_or(0)),
      next_available_(available_seen_),
      next_used_(layout.next_used.value_or(0)),
      published_(next_used_) {}

Pop SplitRing::pop(Chain& chain) {
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

Pop SplitRing::follow(Chain& chain, uint16_t head) {
  chain.token = {.id = head};
  ChainBuilder builder(chain, *memory_);
  const uint8_t* table = descriptors_;
  uint32_t entries = size_;
  uint32_t index = head;
  // A chain longer than its table must loop; max_chain bounds chains that continue in an indirect table.
  uint32_t left_in_table = size_;
  uint32_t left = max_chain_;
  for (;;) {
    if (left_in_table-- == 0) return fail("a descriptor chain loops");
    const Descriptor descriptor = copy_entry<Descriptor>(table, index);
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
    builder.add(descriptor.address, descriptor.length, descriptor.flags & kDescWrite);
    if (!(descriptor.flags & kDescNext)) break;
    if (descriptor.next >= entries) return fail("a descriptor's next one is out of range");
    index = descriptor.next;
  }
  builder.finish();
  return Pop::Taken;
}

void SplitRing::push(ChainToken token, uint32_t written) {
  const UsedElement element{token.id, written};
  std::memcpy(used_ + 4 + sizeof element * (next_used_ & (size_ - 1)), &element, sizeof element);
  ++next_used_;
  --outstanding_;
}

bool SplitRing::publish() {
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

void SplitRing::suppress_notifications() {
  if (features_.event_idx) return;  // the event index lies behind us: no notification is due
  store(reinterpret_cast<uint16_t*>(used_), kUsedNoNotify, std::memory_order_relaxed);
}

bool SplitRing::enable_notifications() {
  if (features_.event_idx) {
    auto* event = reinterpret_cast<uint16_t*>(used_ + 4 + sizeof(UsedElement) * size_);
    store(event, next_available_, std::memory_order_seq_cst);
  } else {
    store(reinterpret_cast<uint16_t*>(used_), 0, std::memory_order_seq_cst);
  }
  return load(available_ + 1, std::memory_order_seq_cst) != next_available_;
}

}  // namespace spindle::virtio
