// Virtqueue: the device's side of one virtqueue, split (virtio 1.2, 2.7) or packed (2.8). It knows neither a
// transport nor a device type.
//
// The way of a chain: pop() takes the next available chain, copies and checks every descriptor of it,
// and hands out a Chain, a value that names host memory and that nothing the guest does later can change.
// push() writes a used element which the driver does not see yet; publish() shows everything pushed since by
// one store and decides once whether the driver is owed an interrupt.
//
// What a guest writes here is data from an enemy, and it may change at any moment:
// - A descriptor is copied before it is looked at, and only the copy is used.
// - Ring addresses are checked once, in check() and enable(), and used as host pointers from then on.
// - Work is bounded: a chain has at most `max_chain` descriptors, and no more chains are out than the queue
//   has descriptors.
//
// Two kinds of malformed input are told apart. If a chain's structure can be followed to its end but a buffer
// is bad (not in RAM, a readable one after a writable one, more than 4 GiB), the chain comes out with its
// `fault` set and the device fails that request alone. If the structure itself is wrong (a loop, an index out
// of range, a bad indirect table, an available index that jumped), nobody can say where the request's status
// would be, so the queue is broken: it gives nothing more, and the device asks for a reset.
//
// The two kinds of ring are types of their own (split_ring.h, packed_ring.h). Which one a queue is, is
// decided when it is enabled and asked by one branch a verb that always goes the same way: nothing is
// virtual.
//
// Ordering: what makes a chain available is loaded with acquire, so descriptors and buffers the driver wrote
// before it are seen; what shows used elements is stored after them and after the buffers. The two decisions
// that look at the other side after telling it something (publish, enable_notifications) store and load
// sequentially consistently, which is a full barrier between the two.
//
// Threading: one thread, the device's reactor. check() may run on any.
#pragma once

#include <cassert>
#include <cstdint>
#include <string_view>
#include <variant>

#include "devices/virtio/packed_ring.h"
#include "devices/virtio/split_ring.h"

namespace spindle::virtio {

/// Calls `verb` with the kind of ring there is.
template <typename Rings, typename Verb>
decltype(auto) with_ring(Rings& rings, Verb verb) {
  if (auto* packed = std::get_if<PackedRing>(&rings)) return verb(*packed);
  return verb(*std::get_if<SplitRing>(&rings));
}

class Virtqueue {
 public:
  /// What is wrong with `layout`, empty if nothing: a size that this kind of ring can have and at most
  /// `max_size`, areas aligned (2.7, 2.8.10.1) and in RAM. Any thread.
  static std::string_view check(const QueueLayout& layout, const GuestMemory& memory, RingFeatures features,
                                uint32_t max_size);

  /// Starts to serve a queue. `max_chain`: the longest chain accepted, indirect descriptors included.
  /// Returns what check() says; the queue is enabled if that is nothing. `memory` outlives the queue.
  std::string_view enable(const QueueLayout& layout, const GuestMemory& memory, RingFeatures features,
                          uint32_t max_size, uint32_t max_chain);
  void disable() { enabled_ = false; }
  bool enabled() const { return enabled_; }

  Pop pop(Chain& chain) {
    if (!enabled_) return Pop::Empty;
    return with_ring(ring_, [&](auto& ring) { return ring.broken() ? Pop::Broken : ring.pop(chain); });
  }
  /// Gives a chain back: at least the first `written` bytes of its writable part were written (2.7.8.2). Seen
  /// by the driver after publish(). Chains may be given back in any order.
  void push(ChainToken token, uint32_t written) {
    with_ring(ring_, [&](auto& ring) {
      assert(ring.outstanding() > 0);
      ring.push(token, written);
    });
  }
  /// Shows the driver what was pushed. True if it must be interrupted.
  bool publish() {
    return with_ring(ring_, [](auto& ring) { return ring.publish(); });
  }

  /// The driver need not notify while the device looks by itself. A hint; with event idx it needs no word.
  void suppress_notifications() {
    if (enabled_) with_ring(ring_, [](auto& ring) { ring.suppress_notifications(); });
  }
  /// Asks for a notification of the next available chain. True if one became available meanwhile, for which
  /// no notification may come: the caller looks again.
  bool enable_notifications() {
    return enabled_ &&
           with_ring(ring_, [](auto& ring) { return !ring.broken() && ring.enable_notifications(); });
  }

  /// The device found that it cannot go on with this queue. `reason` stays valid.
  void declare_broken(std::string_view reason) {
    with_ring(ring_, [&](auto& ring) { ring.declare_broken(reason); });
  }
  /// A sentence, empty while the queue is not broken.
  std::string_view broken_reason() const {
    return with_ring(ring_, [](const auto& ring) { return ring.broken_reason(); });
  }
  /// Chains popped and not yet pushed.
  uint32_t outstanding() const {
    return with_ring(ring_, [](const auto& ring) { return ring.outstanding(); });
  }
  /// Where the next chain will be taken, in the form of QueueLayout: what another transport must be told when
  /// a queue stops.
  uint16_t next_available() const {
    return with_ring(ring_, [](const auto& ring) { return ring.next_available(); });
  }

 private:
  std::variant<SplitRing, PackedRing> ring_;
  bool enabled_ = false;
};

}  // namespace spindle::virtio
