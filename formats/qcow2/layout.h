// Layout: the sizes that follow from a qcow2 header, and what its table entries mean. Pure arithmetic.
//
// Words are those of the format's specification: a cluster is the unit of allocation; an L1 entry points to
// an L2 table of one cluster; an L2 entry says where a guest cluster lies; a refcount block of one cluster
// counts the users of host clusters, and the refcount table points to the blocks.
//
// With extended L2 entries a guest cluster has 32 subclusters, and its entry is followed by 64 bits: the low
// half says which subclusters are allocated, the high half which read as zeroes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace spindle::qcow2 {

inline constexpr uint64_t kSector = 512;
inline constexpr unsigned kSmallestClusterBits = 9;
inline constexpr unsigned kLargestClusterBits = 21;
inline constexpr unsigned kSmallestExtendedClusterBits = 14;
inline constexpr unsigned kSubclusters = 32;
/// QEMU's limits, so that no image is made here that it cannot open.
inline constexpr uint64_t kLargestL1Bytes = 32 << 20;
inline constexpr uint64_t kLargestRefcountTableBytes = 8 << 20;

/// Bits 9 to 55 of a table entry: an offset in the file.
inline constexpr uint64_t kOffsetMask = 0x00ff'ffff'ffff'fe00;
inline constexpr uint64_t kCopied = uint64_t{1} << 63;      ///< its refcount is exactly one
inline constexpr uint64_t kCompressed = uint64_t{1} << 62;  ///< L2 only
inline constexpr uint64_t kZero = 1;                        ///< L2 only, not with extended entries

/// What the guest sees of a cluster, or of a subcluster.
enum class Kind : uint8_t {
  Unallocated,    ///< the backing file's, or zeroes
  Zero,           ///< zeroes, without a place
  ZeroAllocated,  ///< zeroes, though it has a place
  Data,
  Compressed,
  Invalid,  ///< bits that contradict each other
};

/// An L2 entry; of standard ones `bitmap` is 0.
struct L2Entry {
  uint64_t entry = 0;
  uint64_t bitmap = 0;

  bool operator==(const L2Entry&) const = default;
  uint64_t host_offset() const { return entry & kOffsetMask; }
  bool copied() const { return (entry & kCopied) != 0; }
  bool compressed() const { return (entry & kCompressed) != 0; }
};

/// Where compressed data lies: `bytes` is the room up to the end of its last sector; the stream may end
/// before.
struct CompressedPlace {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct Layout {
  unsigned cluster_bits = 16;
  unsigned refcount_order = 4;  ///< a count has 1 << refcount_order bits
  bool extended_l2 = false;
  bool external_data = false;  ///< clusters lie in another file, where offset 0 is a place like any

  uint64_t cluster_size() const { return uint64_t{1} << cluster_bits; }
  uint64_t in_cluster(uint64_t offset) const { return offset & (cluster_size() - 1); }
  uint64_t cluster_start(uint64_t offset) const { return offset & ~(cluster_size() - 1); }
  /// Clusters that `bytes` take. Any `bytes` is allowed.
  uint64_t clusters(uint64_t bytes) const {
    return (bytes >> cluster_bits) + (in_cluster(bytes) != 0 ? 1 : 0);
  }
  unsigned l2_entry_bytes() const { return extended_l2 ? 16 : 8; }
  unsigned l2_bits() const { return cluster_bits - (extended_l2 ? 4 : 3); }
  uint64_t l2_entries() const { return uint64_t{1} << l2_bits(); }
  /// Bytes of the disk that one L1 entry covers; at most 2^39.
  uint64_t l1_entry_covers() const { return uint64_t{1} << (cluster_bits + l2_bits()); }
  uint64_t l1_entries(uint64_t disk_size) const {
    const unsigned bits = cluster_bits + l2_bits();
    return (disk_size >> bits) + ((disk_size & ((uint64_t{1} << bits) - 1)) != 0 ? 1 : 0);
  }
  unsigned subcluster_bits() const { return extended_l2 ? cluster_bits - 5 : cluster_bits; }
  uint64_t subcluster_size() const { return uint64_t{1} << subcluster_bits(); }

  /// Counts that one refcount block holds.
  uint64_t refcount_block_entries() const { return uint64_t{1} << (cluster_bits + 3 - refcount_order); }
  uint64_t largest_refcount() const {
    return refcount_order == 6 ? ~uint64_t{0} : (uint64_t{1} << (uint64_t{1} << refcount_order)) - 1;
  }

  Kind kind(const L2Entry& entry, unsigned subcluster) const;
  /// Of compressed entries only.
  CompressedPlace compressed_place(uint64_t entry) const;
  /// The entry for data of `bytes` at `offset`; nullopt if it cannot be expressed.
  std::optional<uint64_t> compressed_entry(uint64_t offset, uint64_t bytes) const;
};

/// Reads and writes count `index` of a refcount block, whose width is 1 << `order` bits. Counts narrower than
/// a byte begin at its low bits.
uint64_t refcount_at(const std::byte* block, unsigned order, uint64_t index);
void set_refcount(std::byte* block, unsigned order, uint64_t index, uint64_t count);

}  // namespace spindle::qcow2
