// The header of a VDI image, version 1.1, and the rules an image must keep to be opened. docs/vdi.md shows
// the whole layout.
//
//   0        the header, one sector
//   map      one little-endian number of 32 bits for each block of the disk: where in the data area it lies
//   data     blocks, in the order they were first written
//
// The header is kept as the bytes it was read as, and only the fields that we own are ever changed in them:
// comments, UUIDs and what other programs put in between stays. It is one sector, so it is written whole or
// not at all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "block/node.h"

namespace spindle::vdi {

inline constexpr uint64_t kSector = 512;
inline constexpr std::size_t kHeaderBytes = 512;
inline constexpr uint32_t kSignature = 0xbeda107f;
inline constexpr uint32_t kVersion = 0x00010001;
/// Map entries that are no place: both read as zeroes. VirtualBox writes the second for blocks it knows to be
/// zero.
inline constexpr uint32_t kFree = 0xffffffff;
inline constexpr uint32_t kZero = 0xfffffffe;
inline constexpr bool is_place(uint32_t entry) {
  return entry < kZero;
}

inline constexpr uint32_t kDefaultBlock = 1 << 20;
inline constexpr uint32_t kSmallestBlock = 512;
inline constexpr uint32_t kLargestBlock = 256 << 20;
/// The map is kept in memory, 4 bytes a block: at most 256 MiB of it, 64 TiB of disk with blocks of 1 MiB.
inline constexpr uint32_t kMostBlocks = 64 << 20;
inline constexpr std::size_t kEntriesPerSector = kSector / sizeof(uint32_t);

enum class ImageType : uint32_t { Dynamic = 1, Static = 2 };

struct Header {
  std::array<std::byte, kHeaderBytes> bytes{};  ///< as in the file

  ImageType type = ImageType::Dynamic;
  uint32_t map_offset = 0;   ///< bytes
  uint32_t data_offset = 0;  ///< bytes
  uint64_t disk_size = 0;    ///< bytes the guest sees, rounded up to sectors as QEMU does
  uint32_t block_size = 0;   ///< bytes, a power of two
  uint32_t blocks = 0;       ///< entries of the map
  uint32_t allocated = 0;    ///< no place at or above this is used: where others put their next block

  uint64_t place_offset(uint32_t place) const { return data_offset + uint64_t{place} * block_size; }
  uint64_t map_bytes() const { return uint64_t{blocks} * sizeof(uint32_t); }
  /// Blocks that a file of this many bytes has, be it in part.
  uint64_t places_begun_in(uint64_t file_size) const {
    return file_size > data_offset ? (file_size - data_offset + block_size - 1) / block_size : 0;
  }
  /// Blocks that a file of this many bytes has whole.
  uint64_t places_in(uint64_t file_size) const {
    return file_size > data_offset ? (file_size - data_offset) / block_size : 0;
  }
};

/// Whether a file that begins like this is a VDI image of any version.
bool looks_like_vdi(std::span<const std::byte> head);

/// Invalid or NotSupported, with what is wrong, if it is no image that can be used. `name` is for messages.
Result<Header> decode_header(std::span<const std::byte, kHeaderBytes> bytes, const std::string& name);
/// Puts the fields into the bytes.
void encode_header(Header& header);
/// A new image's header, with random UUIDs. `block_size` is a power of two. Invalid if the disk cannot have
/// that size.
Result<Header> make_header(uint64_t disk_size, uint32_t block_size, ImageType type, const std::string& name);

/// Reads and checks the header; the map lies inside the file.
Task<Result<Header>> read_header(Node& file);

}  // namespace spindle::vdi
