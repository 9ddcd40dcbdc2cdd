// BlkRequest: what one chain of a virtio-blk queue asks for (virtio 1.2, 5.2.6), as a value.
//
// The driver may cut header, data and status anywhere (2.7.4.1): the header is the first 16 readable bytes
// wherever they lie, the status byte is the last writable one, and the data is what remains of the direction
// that the type uses. parse() finds them and checks all that can be checked without touching the disk; it has
// no side effects.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "devices/virtio/virtqueue.h"

namespace spindle::virtio {

/// What requests are checked against.
struct BlkLimits {
  uint64_t capacity = 0;  ///< bytes
  bool read_only = false;
};

struct BlkRequest {
  enum class Kind : uint8_t {
    Read,
    Write,
    Flush,
    GetId,
    Reject,        ///< answer `reject_with`, touch nothing
    Unanswerable,  ///< there is no byte to answer in
  };

  Kind kind = Kind::Unanswerable;
  uint8_t reject_with = 0;
  uint64_t offset = 0;      ///< Read, Write: bytes
  std::span<iovec> data;    ///< Read, GetId: to be written; Write: to be read
  uint64_t data_bytes = 0;  ///< Read, Write: a multiple of 512 that lies inside the disk
  uint8_t* status = nullptr;

  /// Takes `chain` apart. The iovecs of the chain are cut in place, `data` points to them.
  static BlkRequest parse(Chain& chain, const BlkLimits& limits);
};

}  // namespace spindle::virtio
