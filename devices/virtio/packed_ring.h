// PackedRing: a packed virtqueue (virtio 1.2, 2.8): one ring of descriptors that both sides write.
//
// The driver makes a chain available in the next descriptors of the ring, the device overwrites descriptors
// with used elements, one a chain, from the front again. Each side has a wrap counter, 1 at first, that turns
// whenever it passes the ring's end; a descriptor's AVAIL and USED bits beside the counter say whose it is. A
// chain is NEXT flags over neighbours, and only its last descriptor has the buffer id; or one descriptor that
// refers to an indirect table.
//
// Where the driver must look for the next used element follows from how many descriptors each chain took, so
// a used element says no position: it is written where the last one ended, in whatever order chains come
// back.
//
// publish(): used elements are written as they are pushed, but for the flags of the first. The driver looks
// at them in order, so storing those flags shows all of them.
#pragma once

#include <cstdint>
#include <string_view>

#include "devices/virtio/ring.h"

namespace spindle::virtio {

class PackedRing : public Ring {
 public:
  static std::string_view check(const QueueLayout& layout, const GuestMemory& memory);

  PackedRing() = default;
  /// `layout` was checked.
  PackedRing(const QueueLayout& layout, const GuestMemory& memory, RingFeatures features, uint32_t max_chain);

  Pop pop(Chain& chain);
  void push(ChainToken token, uint32_t written);
  bool publish();
  void suppress_notifications();
  bool enable_notifications();
  uint16_t next_available() const { return next_available_.encoded(); }

 private:
  /// A place in the ring and the wrap counter there.
  struct Position {
    uint32_t index = 0;
    bool wrap = true;

    static Position decoded(uint16_t value) {
      return {value & ((1u << kPackedWrapBit) - 1), (value >> kPackedWrapBit) != 0};
    }
    uint16_t encoded() const {
      return static_cast<uint16_t>(index | static_cast<unsigned>(wrap) << kPackedWrapBit);
    }
    /// `count` is at most `size`.
    void advance(uint32_t count, uint32_t size) {
      index += count;
      if (index >= size) {
        index -= size;
        wrap = !wrap;
      }
    }
  };
  static Position beginning(const std::optional<uint16_t>& given) {
    return given ? Position::decoded(*given) : Position{};
  }

  bool available() const;
  Pop follow(Chain& chain);
  Pop follow_table(ChainBuilder& builder, const PackedDescriptor& reference);
  uint16_t* flags_at(uint32_t index) const;

  uint8_t* descriptors_ = nullptr;
  const uint32_t* driver_event_ = nullptr;
  uint32_t* device_event_ = nullptr;
  Position next_available_;
  Position next_used_;
  uint32_t descriptors_out_ = 0;     // of chains popped and not yet pushed
  uint32_t unpublished_ = 0;         // descriptors of chains pushed and not yet published
  uint16_t* first_flags_ = nullptr;  // where the flags of the first of these belong, and what they will be
  uint16_t first_value_ = 0;
};

}  // namespace spindle::virtio
