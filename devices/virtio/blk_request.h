// BlkRequest: what one chain of a virtio-blk queue asks for (virtio 1.2, 5.2.6), as a value.
//
// The driver may cut header, data and status anywhere (2.7.4.1): the header is the first 16 readable bytes
// wherever they lie, the status byte is the last writable one, and the data is what remains of the direction
// that the type uses; of DISCARD and WRITE_ZEROES that is segments, each a range of sectors. parse() finds
// them and checks all that can be checked without touching the disk; it has no side effects.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "block/disk.h"
#include "devices/virtio/virtqueue.h"

namespace spindle::virtio {

/// What the configuration space promises of DISCARD and WRITE_ZEROES. The sectors of a segment are limited as
/// QEMU does, to less than 2 GiB. Linux joins the discards of a file system into one request, but never
/// zeroes.
inline constexpr uint32_t kMaxSegmentSectors = 0x7fffffff / kBlkSector;
inline constexpr uint32_t kMaxDiscardSegments = 32;
inline constexpr uint32_t kMaxWriteZeroesSegments = 1;

/// What requests are checked against.
struct BlkLimits {
  uint64_t capacity = 0;  ///< bytes
  bool read_only = false;
  uint64_t features = 0;  ///< as acknowledged
};

struct BlkRequest {
  enum class Kind : uint8_t {
    Read,
    Write,
    Flush,
    GetId,
    Discard,
    WriteZeroes,
    Reject,        ///< answer `reject_with`, touch nothing
    Unanswerable,  ///< there is no byte to answer in
  };

  Kind kind = Kind::Unanswerable;
  uint8_t reject_with = 0;
  bool unmap = false;       ///< WriteZeroes: the space may be given back
  uint64_t offset = 0;      ///< Read, Write: bytes
  std::span<iovec> data;    ///< Read, GetId: to be written; Write: to be read
  uint64_t data_bytes = 0;  ///< Read, Write: a multiple of 512 that lies inside the disk
  uint8_t* status = nullptr;

  /// Takes `chain` apart. The iovecs of the chain are cut in place, `data` points to them. `ranges`: what a
  /// Discard or WriteZeroes covers, none of them empty and all inside the disk; otherwise left alone.
  static BlkRequest parse(Chain& chain, const BlkLimits& limits, std::vector<ByteRange>& ranges);
};

}  // namespace spindle::virtio
