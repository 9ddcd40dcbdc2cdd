#include "formats/vdi/header.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "block/little_endian.h"

namespace spindle::vdi {
namespace {

// Byte offsets of the fields.
constexpr std::size_t kSignatureAt = 0x40, kVersionAt = 0x44, kHeaderSizeAt = 0x48, kTypeAt = 0x4c,
                      kMapOffsetAt = 0x154, kDataOffsetAt = 0x158, kSectorSizeAt = 0x168, kDiskSizeAt = 0x170,
                      kBlockSizeAt = 0x178, kBlockExtraAt = 0x17c, kBlocksAt = 0x180, kAllocatedAt = 0x184,
                      kUuidImageAt = 0x188, kUuidSnapshotAt = 0x198, kUuidLinkAt = 0x1a8,
                      kUuidParentAt = 0x1b8, kGeometrySectorSizeAt = 0x1d4;
constexpr std::size_t kUuidBytes = 16;
constexpr uint32_t kHeaderSize = 0x190;  // from kHeaderSizeAt on, as VirtualBox writes it
constexpr std::string_view kText = "<<< Spindle VM Virtual Disk Image >>>\n";
constexpr uint64_t kMapAt = 4096;
constexpr uint64_t kDataAlignment = 4096;

bool is_null(std::span<const std::byte> bytes, std::size_t at) {
  return std::ranges::all_of(bytes.subspan(at, kUuidBytes), [](std::byte b) { return b == std::byte{}; });
}

std::unexpected<BoxedError> refuse(const std::string& name, std::string detail,
                                   ErrorKind kind = ErrorKind::Invalid) {
  Error error = Error::invalid("open", name, std::move(detail));
  error.kind = kind;
  return std::unexpected(BoxedError(std::move(error)));
}

// A random UUID (RFC 4122, version 4).
Result<> put_uuid(std::span<std::byte> bytes, std::size_t at, const std::string& name) {
  const auto uuid = bytes.subspan(at, kUuidBytes);
  if (getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size())) {
    return std::unexpected(Error::from_errno(errno, "getrandom", name));
  }
  uuid[7] = (uuid[7] & std::byte{0x0f}) | std::byte{0x40};
  uuid[8] = (uuid[8] & std::byte{0x3f}) | std::byte{0x80};
  return {};
}

uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

bool looks_like_vdi(std::span<const std::byte> head) {
  return head.size() >= kHeaderSizeAt && get32(head.data() + kSignatureAt) == kSignature;
}

Result<Header> decode_header(std::span<const std::byte, kHeaderBytes> bytes, const std::string& name) {
  if (!looks_like_vdi(bytes)) return refuse(name, "it is no VDI image: its signature is another one");
  const uint32_t version = get32(bytes.data() + kVersionAt);
  if (version != kVersion) {
    return refuse(name,
                  fmt::format("it is a VDI image of version {}.{}; only 1.1 is known here", version >> 16,
                              version & 0xffff),
                  ErrorKind::NotSupported);
  }
  Header header;
  std::ranges::copy(bytes, header.bytes.begin());
  const uint32_t type = get32(bytes.data() + kTypeAt);
  if (type != static_cast<uint32_t>(ImageType::Dynamic) && type != static_cast<uint32_t>(ImageType::Static)) {
    return refuse(name,
                  fmt::format("its image type is {}; only 1 (dynamic) and 2 (static) can be used here", type),
                  ErrorKind::NotSupported);
  }
  header.type = static_cast<ImageType>(type);
  if (!is_null(bytes, kUuidLinkAt) || !is_null(bytes, kUuidParentAt)) {
    return refuse(name, "it is one of a chain of images (its link or parent UUID is not zero)",
                  ErrorKind::NotSupported);
  }
  header.map_offset = get32(bytes.data() + kMapOffsetAt);
  header.data_offset = get32(bytes.data() + kDataOffsetAt);
  header.disk_size = get64(bytes.data() + kDiskSizeAt);
  header.block_size = get32(bytes.data() + kBlockSizeAt);
  header.blocks = get32(bytes.data() + kBlocksAt);
  header.allocated = get32(bytes.data() + kAllocatedAt);
  if (const uint32_t sector = get32(bytes.data() + kSectorSizeAt); sector != kSector) {
    return refuse(name, fmt::format("its sectors have {} bytes; they must have 512", sector),
                  ErrorKind::NotSupported);
  }
  if (!std::has_single_bit(header.block_size) || header.block_size < kSmallestBlock ||
      header.block_size > kLargestBlock) {
    return refuse(name,
                  fmt::format("its block size is {}; it must be a power of two between 512 and 256 MiB",
                              header.block_size),
                  ErrorKind::NotSupported);
  }
  if (const uint32_t extra = get32(bytes.data() + kBlockExtraAt); extra != 0) {
    return refuse(name, fmt::format("its blocks have {} bytes of extra data; only 0 is known here", extra),
                  ErrorKind::NotSupported);
  }
  if (header.blocks > kMostBlocks) {
    return refuse(
        name, fmt::format("it has {} blocks; more than {} cannot be used here", header.blocks, kMostBlocks),
        ErrorKind::NotSupported);
  }
  if (header.map_offset % kSector != 0 || header.data_offset % kSector != 0 ||
      header.map_offset < kHeaderBytes) {
    return refuse(
        name, fmt::format("its map at {} or its data at {} begins in the header or in the middle of a sector",
                          header.map_offset, header.data_offset));
  }
  if (header.data_offset < header.map_offset + header.map_bytes()) {
    return refuse(name,
                  fmt::format("its map of {} bytes at {} reaches into its data at {}", header.map_bytes(),
                              header.map_offset, header.data_offset),
                  ErrorKind::Corrupt);
  }
  const uint64_t most = uint64_t{header.blocks} * header.block_size;
  if (header.disk_size > most) {
    return refuse(name, fmt::format("it says it is a disk of {} bytes, but its {} blocks hold only {}",
                                    header.disk_size, header.blocks, most));
  }
  header.disk_size = round_up(header.disk_size, kSector);
  return header;
}

void encode_header(Header& header) {
  const std::span<std::byte> bytes(header.bytes);
  put32(bytes.data() + kTypeAt, static_cast<uint32_t>(header.type));
  put32(bytes.data() + kMapOffsetAt, header.map_offset);
  put32(bytes.data() + kDataOffsetAt, header.data_offset);
  put64(bytes.data() + kDiskSizeAt, header.disk_size);
  put32(bytes.data() + kBlockSizeAt, header.block_size);
  put32(bytes.data() + kBlocksAt, header.blocks);
  put32(bytes.data() + kAllocatedAt, header.allocated);
}

Result<Header> make_header(uint64_t disk_size, uint32_t block_size, ImageType type, const std::string& name) {
  const uint64_t most = uint64_t{kMostBlocks} * block_size;
  if (disk_size > most) {
    Error error =
        Error::invalid("create", name,
                       fmt::format("a VDI image with blocks of {} bytes holds at most {} bytes, not {}",
                                   block_size, most, disk_size));
    return std::unexpected(std::move(error));
  }
  Header header;
  header.type = type;
  header.block_size = block_size;
  header.disk_size = round_up(disk_size, kSector);
  header.blocks = static_cast<uint32_t>(round_up(disk_size, block_size) / block_size);
  header.map_offset = kMapAt;
  const uint64_t data = round_up(kMapAt + header.map_bytes(), std::max<uint64_t>(block_size, kDataAlignment));
  header.data_offset = static_cast<uint32_t>(data);  // at most 512 MiB
  header.allocated = type == ImageType::Static ? header.blocks : 0;
  const std::span<std::byte> bytes(header.bytes);
  std::memcpy(bytes.data(), kText.data(), kText.size());
  put32(bytes.data() + kSignatureAt, kSignature);
  put32(bytes.data() + kVersionAt, kVersion);
  put32(bytes.data() + kHeaderSizeAt, kHeaderSize);
  put32(bytes.data() + kSectorSizeAt, static_cast<uint32_t>(kSector));
  // A header of this size has a second geometry, whose sector size VirtualBox wants to be 512 too.
  put32(bytes.data() + kGeometrySectorSizeAt, static_cast<uint32_t>(kSector));
  SPINDLE_TRY(put_uuid(bytes, kUuidImageAt, name));
  SPINDLE_TRY(put_uuid(bytes, kUuidSnapshotAt, name));
  encode_header(header);
  return header;
}

Task<Result<Header>> read_header(Node& file) {
  const std::string& name = file.facts().name;
  const uint64_t size = file.size();
  if (size < kHeaderBytes) {
    co_return refuse(name,
                     fmt::format("it has {} bytes and is no VDI image: the header alone has 512", size));
  }
  std::array<std::byte, kHeaderBytes> bytes{};
  const iovec part{bytes.data(), bytes.size()};
  auto read = co_await file.read(0, Buffers(std::span(&part, 1)));
  if (!read) co_return std::unexpected(std::move(read.error()));
  auto header = decode_header(bytes, name);
  if (header && header->map_offset + header->map_bytes() > size) {
    co_return refuse(name,
                     fmt::format("it was cut off: its map of {} bytes at {} goes beyond the file's {}",
                                 header->map_bytes(), header->map_offset, size),
                     ErrorKind::Corrupt);
  }
  co_return header;
}

}  // namespace spindle::vdi
