#include "devices/virtio/packed_ring.h"

#include <cstddef>

namespace spindle::virtio {
namespace {

bool inside(const std::optional<uint16_t>& position, uint32_t size) {
  return !position || (*position & ((1u << kPackedWrapBit) - 1)) < size;
}

}  // namespace

std::string_view PackedRing::check(const QueueLayout& layout, const GuestMemory& memory) {
  if (!aligned(layout.descriptors, 16)) return "descriptor ring is not aligned to 16";
  if (!aligned(layout.driver_area, 4)) return "driver event suppression is not aligned to 4";
  if (!aligned(layout.device_area, 4)) return "device event suppression is not aligned to 4";
  if (!memory.at(layout.descriptors, descriptor_table_bytes(layout.size)))
    return "descriptor ring does not lie in RAM";
  if (!memory.at(layout.driver_area, kEventSuppressionBytes))
    return "driver event suppression does not lie in RAM";
  if (!memory.at(layout.device_area, kEventSuppressionBytes))
    return "device event suppression does not lie in RAM";
  if (!inside(layout.next_available, layout.size) || !inside(layout.next_used, layout.size))
    return "the queue begins outside its ring";
  return {};
}

PackedRing::PackedRing(const QueueLayout& layout, const GuestMemory& memory, RingFeatures features,
                       uint32_t max_chain)
    : Ring(layout, memory, features, max_chain),
      descriptors_(memory.at(layout.descriptors, descriptor_table_bytes(layout.size))),
      driver_event_(reinterpret_cast<const uint32_t*>(memory.at(layout.driver_area, kEventSuppressionBytes))),
      device_event_(reinterpret_cast<uint32_t*>(memory.at(layout.device_area, kEventSuppressionBytes))),
      next_available_(beginning(layout.next_available)),
      next_used_(beginning(layout.next_used)) {}

uint16_t* PackedRing::flags_at(uint32_t index) const {
  return reinterpret_cast<uint16_t*>(descriptors_ + sizeof(PackedDescriptor) * index +
                                     offsetof(PackedDescriptor, flags));
}

// 2.8.1: AVAIL is as the wrap counter, USED is not.
bool PackedRing::available() const {
  const uint16_t flags = load(flags_at(next_available_.index), std::memory_order_seq_cst);
  const bool avail = flags & kPackedDescAvail;
  const bool used = flags & kPackedDescUsed;
  return avail == next_available_.wrap && used != next_available_.wrap;
}

Pop PackedRing::pop(Chain& chain) {
  if (!available()) return Pop::Empty;
  if (const Pop result = follow(chain); result != Pop::Taken) return result;
  const uint32_t count = chain.token.descriptors;
  next_available_.advance(count, size_);
  descriptors_out_ += count;
  ++outstanding_;
  return Pop::Taken;
}

// The driver makes the first descriptor of a chain available last (2.8.6), so nobody looks at the AVAIL and
// USED bits of the others. What keeps a chain from looping, or from reaching into chains that are out, is
// that all of them together have no more descriptors than the ring.
Pop PackedRing::follow(Chain& chain) {
  ChainBuilder builder(chain, *memory_);
  const uint32_t room = size_ - descriptors_out_;
  uint32_t index = next_available_.index;
  uint32_t count = 0;
  for (;;) {
    if (count == room) return fail("a descriptor chain reaches into descriptors that are in use");
    const auto descriptor = copy_entry<PackedDescriptor>(descriptors_, index);
    ++count;
    chain.token = {.id = descriptor.id, .descriptors = static_cast<uint16_t>(count)};
    if (descriptor.flags & kDescIndirect) {
      if (count != 1) return fail("a descriptor chain with an indirect descriptor in it");
      if (const Pop result = follow_table(builder, descriptor); result != Pop::Taken) return result;
      break;
    }
    if (count > max_chain_) return fail("a descriptor chain is too long");
    builder.add(descriptor.address, descriptor.length, descriptor.flags & kDescWrite);
    if (!(descriptor.flags & kDescNext)) break;
    if (++index == size_) index = 0;
  }
  builder.finish();
  return Pop::Taken;
}

// 2.8.7: the entries follow each other, and of their flags only WRITE has a meaning.
Pop PackedRing::follow_table(ChainBuilder& builder, const PackedDescriptor& reference) {
  if (!features_.indirect) return fail("an indirect descriptor without the feature");
  if (reference.flags & kDescNext) return fail("an indirect descriptor that has a next one");
  if (reference.length == 0 || reference.length % sizeof(PackedDescriptor) != 0)
    return fail("the length of an indirect table is no multiple of 16");
  const uint32_t entries = reference.length / sizeof(PackedDescriptor);
  if (entries > max_chain_) return fail("a descriptor chain is too long");
  const uint8_t* table = memory_->at(reference.address, reference.length);
  if (!table) return fail("an indirect table does not lie in RAM");
  for (uint32_t i = 0; i < entries; ++i) {
    const auto entry = copy_entry<PackedDescriptor>(table, i);
    builder.add(entry.address, entry.length, entry.flags & kDescWrite);
  }
  return Pop::Taken;
}

void PackedRing::push(ChainToken token, uint32_t written) {
  auto* entry = descriptors_ + sizeof(PackedDescriptor) * next_used_.index;
  std::memcpy(entry + offsetof(PackedDescriptor, length), &written, sizeof written);
  std::memcpy(entry + offsetof(PackedDescriptor, id), &token.id, sizeof token.id);
  // 2.8.4: WRITE in a used descriptor says that the length means something.
  const int owner = next_used_.wrap ? kPackedDescAvail | kPackedDescUsed : 0;
  const auto flags = static_cast<uint16_t>(owner | (written != 0 ? kDescWrite : 0));
  uint16_t* place = flags_at(next_used_.index);
  if (unpublished_ == 0) {
    first_flags_ = place;
    first_value_ = flags;
  } else {
    store(place, flags, std::memory_order_relaxed);
  }
  unpublished_ += token.descriptors;
  descriptors_out_ -= token.descriptors;
  next_used_.advance(token.descriptors, size_);
  --outstanding_;
}

bool PackedRing::publish() {
  if (unpublished_ == 0) return false;
  const auto passed = static_cast<int64_t>(unpublished_);
  unpublished_ = 0;
  // The driver writes its wish and then looks at the ring again; we do the reverse. One of us sees it.
  store(first_flags_, first_value_, std::memory_order_seq_cst);
  const uint32_t wish = load(driver_event_, std::memory_order_seq_cst);
  const unsigned flags = wish >> 16 & 3;  // the rest is reserved
  if (flags == kPackedEventDisable) return false;
  if (flags != kPackedEventDesc || !features_.event_idx) return true;
  // 2.8.10.1: was the descriptor that the driver waits for among those passed?
  const Position event = Position::decoded(static_cast<uint16_t>(wish));
  int64_t behind = int64_t{next_used_.index} - event.index;
  if (event.wrap != next_used_.wrap) behind += size_;
  return behind > 0 && behind <= passed;
}

void PackedRing::suppress_notifications() {
  if (features_.event_idx) return;  // the position asked for lies behind us: no notification is due
  store(device_event_, uint32_t{kPackedEventDisable} << 16, std::memory_order_relaxed);
}

bool PackedRing::enable_notifications() {
  uint32_t wish = uint32_t{kPackedEventEnable} << 16;
  if (features_.event_idx) wish = uint32_t{kPackedEventDesc} << 16 | next_available_.encoded();
  store(device_event_, wish, std::memory_order_seq_cst);
  return available();
}

}  // namespace spindle::virtio
