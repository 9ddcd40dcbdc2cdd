// Virtqueue: the device's side of one split virtqueue (virtio 1.2, 2.7). It knows neither a transport nor a
// device type.
//
// The way of a chain: pop() takes the next available head, copies and checks every descriptor of its chain,
// and hands out a Chain, a value that names host memory and that nothing the guest does later can change.
// push() writes a used element which the driver does not see yet; publish() shows everything pushed since by
// one store of the used index and decides once whether the driver is owed an interrupt.
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
// A packed ring (2.8) fits behind the same verbs: ChainToken is what it needs to give a chain back.
//
// Ordering: the available index is loaded with acquire, so descriptors and buffers the driver wrote before it
// are seen; the used index is stored after the buffers and used elements. The two decisions that look at the
// other side after telling it something (publish, enable_notifications) store and load sequentially
// consistently, which is a full barrier between the two.
//
// Threading: one thread, the device's reactor. check() may run on any.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "devices/guest_memory.h"
#include "devices/virtio/spec.h"

namespace spindle::virtio {

/// Where a queue lies in guest memory, and where to begin (0 after a reset; another transport or a restored
/// machine may begin in the middle).
struct QueueLayout {
  uint32_t size = 0;  ///< descriptors, a power of two
  uint64_t descriptors = 0;
  uint64_t driver_area = 0;  ///< the available ring
  uint64_t device_area = 0;  ///< the used ring
  uint16_t next_available = 0;
  uint16_t next_used = 0;
};

/// What the engine must know of the features that were acknowledged.
struct RingFeatures {
  bool indirect = false;
  bool event_idx = false;
};

/// Why a chain that can be followed must not be carried out.
enum class ChainFault : uint8_t {
  None,
  OutsideRam,             ///< a buffer does not lie in guest RAM
  ReadableAfterWritable,  ///< 2.7.4.2: all readable buffers come first
  TooManyBytes,           ///< 2.7.5: more than 4 GiB in one direction
};

/// How a chain is given back.
struct ChainToken {
  uint16_t id = 0;
};

/// One request as the guest described it, checked. Reused: its memory is kept from one pop() to the next.
struct Chain {
  ChainToken token;
  ChainFault fault = ChainFault::None;
  uint32_t readable_parts = 0;  ///< how many of `parts`, from the front, are for the device to read
  uint64_t readable_bytes = 0;
  uint64_t writable_bytes = 0;
  std::vector<iovec> parts;  ///< host memory, no part empty; with a fault only the buffers that are good
  uint8_t* last_writable = nullptr;  ///< the last byte the device may write; null if none, or not in RAM

  std::span<iovec> readable() { return std::span(parts).first(readable_parts); }
  std::span<iovec> writable() { return std::span(parts).subspan(readable_parts); }
};

enum class Pop : uint8_t {
  Empty,   ///< nothing is available now
  Taken,   ///< the chain was filled in; give it back by push()
  Broken,  ///< the queue is unusable until it is enabled anew; see broken_reason()
};

class Virtqueue {
 public:
  /// What is wrong with `layout`, empty if nothing: size a power of two and at most `max_size`, areas aligned
  /// (2.7) and in RAM. Any thread.
  static std::string_view check(const QueueLayout& layout, const GuestMemory& memory, uint32_t max_size);

  /// Starts to serve a queue. `max_chain`: the longest chain accepted, indirect descriptors included.
  /// Returns what check() says; the queue is enabled if that is nothing. `memory` outlives the queue.
  std::string_view enable(const QueueLayout& layout, const GuestMemory& memory, RingFeatures features,
                          uint32_t max_size, uint32_t max_chain);
  void disable() { enabled_ = false; }
  bool enabled() const { return enabled_; }

  Pop pop(Chain& chain);
  /// Gives a chain back: at least the first `written` bytes of its writable part were written (2.7.8.2). Seen
  /// by the driver after publish().
  void push(ChainToken token, uint32_t written);
  /// Shows the driver what was pushed. True if it must be interrupted.
  bool publish();

  /// The driver need not notify while the device looks by itself. A hint; with event idx it needs no word.
  void suppress_notifications();
  /// Asks for a notification of the next available chain. True if one became available meanwhile, for which
  /// no notification may come: the caller looks again.
  bool enable_notifications();

  /// The device found that it cannot go on with this queue. `reason` stays valid.
  void declare_broken(std::string_view reason) { broken_ = reason; }
  /// A sentence, empty while the queue is not broken.
  std::string_view broken_reason() const { return broken_; }
  /// Popped and not yet pushed.
  uint32_t outstanding() const { return outstanding_; }
  /// The index of the next head to take: what another transport must be told when a queue stops.
  uint16_t next_available() const { return next_available_; }

 private:
  Pop fail(std::string_view reason);
  Pop follow(Chain& chain, uint16_t head);

  const GuestMemory* memory_ = nullptr;
  const uint8_t* descriptors_ = nullptr;
  uint16_t* available_ = nullptr;  // flags, idx, ring[size], used_event
  uint8_t* used_ = nullptr;        // flags, idx, ring[size], avail_event
  uint32_t size_ = 0;
  uint32_t max_chain_ = 0;
  RingFeatures features_;
  bool enabled_ = false;
  uint16_t available_seen_ = 0;  // the available index as last loaded
  uint16_t next_available_ = 0;
  uint16_t next_used_ = 0;
  uint16_t published_ = 0;  // the used index the driver sees
  uint32_t outstanding_ = 0;
  std::string_view broken_;
};

}  // namespace spindle::virtio
