#include "formats/qcow2/layout.h"

#include "block/big_endian.h"

namespace spindle::qcow2 {

Kind Layout::kind(const L2Entry& entry, unsigned subcluster) const {
  if (entry.compressed()) return Kind::Compressed;
  const bool placed = entry.host_offset() != 0 || (external_data && entry.copied());
  if (!extended_l2) {
    if ((entry.entry & kZero) != 0) return placed ? Kind::ZeroAllocated : Kind::Zero;
    return placed ? Kind::Data : Kind::Unallocated;
  }
  const bool allocated = (entry.bitmap >> subcluster & 1) != 0;
  const bool zero = (entry.bitmap >> (subcluster + kSubclusters) & 1) != 0;
  if (zero) return allocated ? Kind::Invalid : placed ? Kind::ZeroAllocated : Kind::Zero;
  if (!allocated) return Kind::Unallocated;
  return placed ? Kind::Data : Kind::Invalid;
}

CompressedPlace Layout::compressed_place(uint64_t entry) const {
  const unsigned shift = 62 - (cluster_bits - 8);
  const uint64_t offset = entry & ((uint64_t{1} << shift) - 1);
  const uint64_t more_sectors = (entry >> shift) & ((uint64_t{1} << (cluster_bits - 8)) - 1);
  return {.offset = offset, .bytes = (more_sectors + 1) * kSector - offset % kSector};
}

std::optional<uint64_t> Layout::compressed_entry(uint64_t offset, uint64_t bytes) const {
  const unsigned shift = 62 - (cluster_bits - 8);
  if (bytes == 0 || offset >> shift != 0) return std::nullopt;
  const uint64_t more_sectors = (offset + bytes - 1) / kSector - offset / kSector;
  if (more_sectors >> (cluster_bits - 8) != 0) return std::nullopt;
  return kCompressed | more_sectors << shift | offset;
}

uint64_t refcount_at(const std::byte* block, unsigned order, uint64_t index) {
  using namespace big_endian;
  switch (order) {
    case 3:
      return static_cast<uint64_t>(block[index]);
    case 4:
      return get16(block + index * 2);
    case 5:
      return get32(block + index * 4);
    case 6:
      return get64(block + index * 8);
    default:
      break;
  }
  const uint64_t per_byte = 8 >> order, bits = 1 << order;
  const auto byte = static_cast<uint64_t>(block[index / per_byte]);
  return byte >> (index % per_byte * bits) & ((uint64_t{1} << bits) - 1);
}

void set_refcount(std::byte* block, unsigned order, uint64_t index, uint64_t count) {
  using namespace big_endian;
  switch (order) {
    case 3:
      block[index] = static_cast<std::byte>(count);
      return;
    case 4:
      return put16(block + index * 2, static_cast<uint16_t>(count));
    case 5:
      return put32(block + index * 4, static_cast<uint32_t>(count));
    case 6:
      return put64(block + index * 8, count);
    default:
      break;
  }
  const uint64_t per_byte = 8 >> order, bits = 1 << order;
  const uint64_t shift = index % per_byte * bits, mask = ((uint64_t{1} << bits) - 1) << shift;
  auto byte = static_cast<uint64_t>(block[index / per_byte]);
  byte = (byte & ~mask) | (count << shift & mask);
  block[index / per_byte] = static_cast<std::byte>(byte);
}

}  // namespace spindle::qcow2
