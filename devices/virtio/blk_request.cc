#include "devices/virtio/blk_request.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>

namespace spindle::virtio {
namespace {

// Copies a structure out of the readable part and cuts it off. nullopt if there are not enough bytes.
template <typename Structure>
std::optional<Structure> take(std::span<iovec>& readable) {
  Structure copy;
  auto* to = reinterpret_cast<uint8_t*>(&copy);
  std::size_t left = sizeof copy;
  while (left > 0) {
    if (readable.empty()) return std::nullopt;
    iovec& part = readable.front();
    const std::size_t bytes = std::min(left, part.iov_len);
    std::memcpy(to, part.iov_base, bytes);
    to += bytes;
    left -= bytes;
    part.iov_base = static_cast<uint8_t*>(part.iov_base) + bytes;
    part.iov_len -= bytes;
    if (part.iov_len == 0) readable = readable.subspan(1);
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);  // only the copy is looked at from here on
  return copy;
}

// Cuts the status byte off the end of the writable part, which is not empty.
void take_status(std::span<iovec>& writable) {
  iovec& last = writable.back();
  --last.iov_len;
  if (last.iov_len == 0) writable = writable.first(writable.size() - 1);
}

bool inside(uint64_t sector, uint64_t bytes, uint64_t capacity) {
  return sector <= capacity / kBlkSector && bytes <= capacity - sector * kBlkSector;
}

// Takes the segments of a DISCARD or WRITE_ZEROES, of which `bytes` are left. The status to reject the
// request with, or OK.
uint8_t take_segments(uint32_t type, std::span<iovec> readable, uint64_t bytes, const BlkLimits& limits,
                      BlkRequest& request, std::vector<ByteRange>& ranges) {
  using Segment = BlkDiscardWriteZeroes;
  const bool discard = type == kBlkTypeDiscard;
  const uint64_t most = discard ? kMaxDiscardSegments : kMaxWriteZeroesSegments;
  // 5.2.6.2: other flags, and unmap for a discard, are UNSUPP.
  const uint32_t known_flags = discard ? 0 : kBlkWriteZeroesUnmap;
  if (!(limits.features & (discard ? kBlkDiscard : kBlkWriteZeroes))) return kBlkStatusUnsupported;
  if (limits.read_only) return kBlkStatusIoError;
  if (bytes == 0 || bytes % sizeof(Segment) != 0 || bytes / sizeof(Segment) > most) return kBlkStatusIoError;
  request.kind = discard ? BlkRequest::Kind::Discard : BlkRequest::Kind::WriteZeroes;
  ranges.clear();
  while (const auto segment = take<Segment>(readable)) {
    const uint64_t length = uint64_t{segment->num_sectors} * kBlkSector;
    if (segment->flags & ~known_flags) return kBlkStatusUnsupported;
    if (segment->num_sectors > kMaxSegmentSectors || !inside(segment->sector, length, limits.capacity))
      return kBlkStatusIoError;
    request.unmap = segment->flags & kBlkWriteZeroesUnmap;
    if (length > 0) ranges.push_back({.offset = segment->sector * kBlkSector, .length = length});
  }
  return kBlkStatusOk;
}

}  // namespace

BlkRequest BlkRequest::parse(Chain& chain, const BlkLimits& limits, std::vector<ByteRange>& ranges) {
  BlkRequest request;
  request.status = chain.last_writable;
  if (!request.status) return request;
  const auto reject = [&request](uint8_t with) {
    request.kind = Kind::Reject;
    request.reject_with = with;
    return request;
  };
  if (chain.fault != ChainFault::None) return reject(kBlkStatusIoError);

  std::span<iovec> readable = chain.readable();
  std::span<iovec> writable = chain.writable();
  take_status(writable);
  const auto header = take<BlkRequestHeader>(readable);
  if (!header) return reject(kBlkStatusIoError);

  switch (header->type) {
    case kBlkTypeIn:
      request.kind = Kind::Read;
      request.data = writable;
      request.data_bytes = chain.writable_bytes - 1;
      break;
    case kBlkTypeOut:
      request.kind = Kind::Write;
      request.data = readable;
      request.data_bytes = chain.readable_bytes - sizeof *header;
      if (limits.read_only) return reject(kBlkStatusIoError);
      break;
    case kBlkTypeFlush:
      request.kind = Kind::Flush;
      return request;
    case kBlkTypeGetId:
      request.kind = Kind::GetId;
      request.data = writable;
      request.data_bytes = chain.writable_bytes - 1;
      return request;
    case kBlkTypeDiscard:
    case kBlkTypeWriteZeroes: {
      const uint64_t bytes = chain.readable_bytes - sizeof *header;
      const uint8_t status = take_segments(header->type, readable, bytes, limits, request, ranges);
      return status == kBlkStatusOk ? request : reject(status);
    }
    default:
      return reject(kBlkStatusUnsupported);
  }
  if (request.data_bytes % kBlkSector != 0 || !inside(header->sector, request.data_bytes, limits.capacity))
    return reject(kBlkStatusIoError);
  request.offset = header->sector * kBlkSector;
  return request;
}

}  // namespace spindle::virtio
