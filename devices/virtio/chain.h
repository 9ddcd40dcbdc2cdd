// Chain: one request as it came out of a virtqueue, whichever kind of ring it lay in.
//
// A Chain names host memory and holds copies only: nothing the guest does later can change it. ChainBuilder
// is how the rings make one, descriptor by descriptor, with the checks that are the same for both.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "devices/guest_memory.h"

namespace spindle::virtio {

/// Why a chain that can be followed must not be carried out.
enum class ChainFault : uint8_t {
  None,
  OutsideRam,             ///< a buffer does not lie in guest RAM
  ReadableAfterWritable,  ///< 2.7.4.2: all readable buffers come first
  TooManyBytes,           ///< 2.7.5: more than 4 GiB in one direction
};

/// How a chain is given back.
struct ChainToken {
  uint16_t id = 0;           ///< split: the head's index; packed: the driver's buffer id
  uint16_t descriptors = 1;  ///< packed: how many of the ring's it took
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

class ChainBuilder {
 public:
  ChainBuilder(Chain& chain, const GuestMemory& memory) : chain_(chain), memory_(memory) {
    chain.fault = ChainFault::None;
    chain.readable_parts = 0;
    chain.readable_bytes = chain.writable_bytes = 0;
    chain.parts.clear();
    chain.last_writable = nullptr;
  }

  void add(uint64_t address, uint32_t length, bool writable) {
    if (writable) {
      writable_seen_ = true;
    } else if (writable_seen_) {
      chain_.fault = ChainFault::ReadableAfterWritable;
    }
    if (!add_buffer(address, length, writable) && chain_.fault == ChainFault::None)
      chain_.fault = ChainFault::OutsideRam;
  }
  void finish() {
    constexpr uint64_t kMaxBytes = 0xffffffff;  // what a used element can report
    if (chain_.fault == ChainFault::None &&
        (chain_.readable_bytes > kMaxBytes || chain_.writable_bytes > kMaxBytes)) {
      chain_.fault = ChainFault::TooManyBytes;
    }
  }

 private:
  // False if the buffer does not lie in RAM. An empty buffer is legal (the standard forbids none) and adds
  // nothing, wherever it claims to lie.
  bool add_buffer(uint64_t address, uint32_t length, bool writable) {
    if (length == 0) return true;
    uint8_t* host = memory_.at(address, length);
    if (writable) {
      chain_.last_writable = host ? host + length - 1 : nullptr;
      chain_.writable_bytes += length;
    } else {
      chain_.readable_bytes += length;
    }
    if (!host) return false;
    chain_.parts.push_back({host, length});
    if (!writable) chain_.readable_parts = static_cast<uint32_t>(chain_.parts.size());
    return true;
  }

  Chain& chain_;
  const GuestMemory& memory_;
  bool writable_seen_ = false;
};

}  // namespace spindle::virtio
