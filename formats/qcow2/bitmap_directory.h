// The dirty bitmaps of a qcow2 image: the header extension that names their directory, the directory's
// entries, and each bitmap's table, which points to the clusters that hold its bits.
//
// They count only while the autoclear bit kBitmaps is set: without it somebody wrote to the image who knew
// nothing of them, and they are leaked clusters. What an entry's extra data means is not known here; it goes
// back as it came.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "block/node.h"
#include "formats/qcow2/header.h"

namespace spindle::qcow2 {

/// QEMU's limits.
inline constexpr uint32_t kMostBitmaps = 65535;
inline constexpr std::size_t kLongestBitmapName = 1023;
inline constexpr unsigned kSmallestGranularityBits = 9;
inline constexpr unsigned kLargestGranularityBits = 31;
inline constexpr uint64_t kMostBitmapTableEntries = 0x800'0000;
/// Its names alone could take this much; nobody's directory is larger.
inline constexpr uint64_t kLargestBitmapDirectory = 64 << 20;

/// Bits of BitmapEntry::flags.
inline constexpr uint32_t kBitmapInUse = 1 << 0;  ///< not saved since it was last loaded: not to be used
inline constexpr uint32_t kBitmapAuto = 1 << 1;   ///< goes on recording
inline constexpr uint32_t kBitmapExtraCompatible = 1 << 2;

/// Bits of a bitmap table's entry: without an offset, all of its bits are this one.
inline constexpr uint64_t kBitmapAllOnes = 1;

struct BitmapsExtension {
  uint32_t bitmaps = 0;
  uint64_t directory_bytes = 0;
  uint64_t directory_offset = 0;
};

struct BitmapEntry {
  uint64_t table_offset = 0;
  uint32_t table_entries = 0;
  uint32_t flags = 0;
  uint8_t type = 1;  ///< 1: dirty tracking
  uint8_t granularity_bits = 16;
  std::string name;
  std::vector<std::byte> extra;

  bool operator==(const BitmapEntry&) const = default;
  uint64_t granularity() const { return uint64_t{1} << granularity_bits; }
};

/// The extension, if there is one and it counts. Corrupt if it has no sound numbers.
Result<std::optional<BitmapsExtension>> bitmaps_of(const Header& header, const std::string& name);
/// Puts the extension and the autoclear bit into the header, or takes both out.
void set_bitmaps(Header& header, const std::optional<BitmapsExtension>& extension);

/// The directory; empty if no bitmaps count. Memory: at most what kLargestBitmapDirectory bytes hold. Corrupt
/// if it goes beyond the file, or does not hold exactly the entries it should.
Task<Result<std::vector<BitmapEntry>>> read_bitmap_directory(Node& file, const Header& header);
Result<std::vector<BitmapEntry>> decode_bitmap_directory(std::span<const std::byte> bytes, uint32_t bitmaps,
                                                         const std::string& name);
/// Invalid if names are too long, or there are too many.
Result<std::vector<std::byte>> encode_bitmap_directory(std::span<const BitmapEntry> entries,
                                                       const std::string& name);

/// Whether the bitmap's table is aligned, inside the file, and not larger than one may be.
Result<> check_bitmap_table(const BitmapEntry& entry, const Layout& layout, uint64_t file_size,
                            const std::string& name);
/// `count` entries of the table from `first` on, inside it; the caller bounds how many, since a table may be
/// larger than memory should be.
Task<Result<std::vector<uint64_t>>> read_bitmap_table(Node& file, const BitmapEntry& entry, uint64_t first,
                                                      uint64_t count);

/// Entries that the table of a bitmap of `granularity_bits` over `disk_size` bytes has.
uint64_t bitmap_table_entries(const Layout& layout, uint64_t disk_size, unsigned granularity_bits);

}  // namespace spindle::qcow2
