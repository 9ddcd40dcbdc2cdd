#include "devices/virtio/blk_request.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>

namespace spindle::virtio {
namespace {

// Copies the header out of the readable part and cuts it off. nullopt if there are not enough bytes.
std::optional<BlkRequestHeader> take_header(std::span<iovec>& readable) {
  BlkRequestHeader header;
  auto* to = reinterpret_cast<uint8_t*>(&header);
  std::size_t left = sizeof header;
  while (left > 0) {
    if (readable.empty()) return std::nullopt;
    iovec& part = readable.front();
    const std::size_t take = std::min(left, part.iov_len);
    std::memcpy(to, part.iov_base, take);
    to += take;
    left -= take;
    part.iov_base = static_cast<uint8_t*>(part.iov_base) + take;
    part.iov_len -= take;
    if (part.iov_len == 0) readable = readable.subspan(1);
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);  // only the copy is looked at from here on
  return header;
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

}  // namespace

BlkRequest BlkRequest::parse(Chain& chain, const BlkLimits& limits) {
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
  const auto header = take_header(readable);
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
    default:
      return reject(kBlkStatusUnsupported);
  }
  if (request.data_bytes % kBlkSector != 0 || !inside(header->sector, request.data_bytes, limits.capacity))
    return reject(kBlkStatusIoError);
  request.offset = header->sector * kBlkSector;
  return request;
}

}  // namespace spindle::virtio
