#include "formats/qcow2/bitmap_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "block/big_endian.h"
#include "formats/qcow2/table_io.h"

namespace spindle::qcow2 {
namespace {

using namespace big_endian;

constexpr std::size_t kExtensionBytes = 24;
constexpr std::size_t kFixedBytes = 24;

std::unexpected<BoxedError> corrupt(const std::string& name, std::string detail) {
  return std::unexpected(BoxedError(Error{.kind = ErrorKind::Corrupt,
                                          .operation = "read bitmaps of",
                                          .node = name,
                                          .detail = std::move(detail)}));
}

}  // namespace

Result<std::optional<BitmapsExtension>> bitmaps_of(const Header& header, const std::string& name) {
  const Extension* extension = header.find(ExtensionType::Bitmaps);
  if (!extension || (header.autoclear & kBitmaps) == 0) return std::nullopt;
  if (extension->data.size() != kExtensionBytes) {
    return corrupt(name, fmt::format("its bitmaps extension has {} bytes; it must have {}",
                                     extension->data.size(), kExtensionBytes));
  }
  const std::byte* data = extension->data.data();
  const BitmapsExtension found{
      .bitmaps = get32(data), .directory_bytes = get64(data + 8), .directory_offset = get64(data + 16)};
  if (get32(data + 4) != 0) return corrupt(name, "its bitmaps extension has reserved bits set");
  if (found.bitmaps == 0 || found.bitmaps > kMostBitmaps) {
    return corrupt(name, fmt::format("its bitmaps extension says there are {} bitmaps; there can be 1 to {}",
                                     found.bitmaps, kMostBitmaps));
  }
  if (header.layout.in_cluster(found.directory_offset) != 0 || found.directory_offset == 0) {
    return corrupt(name, fmt::format("its bitmap directory lies at {}, where no cluster begins",
                                     found.directory_offset));
  }
  if (found.directory_bytes > kLargestBitmapDirectory) {
    return corrupt(name, fmt::format("its bitmap directory has {} bytes; at most {} can be used here",
                                     found.directory_bytes, kLargestBitmapDirectory));
  }
  return found;
}

void set_bitmaps(Header& header, const std::optional<BitmapsExtension>& extension) {
  if (!extension) {
    header.set(ExtensionType::Bitmaps, std::nullopt);
    header.autoclear &= ~kBitmaps;
    return;
  }
  std::vector<std::byte> data(kExtensionBytes);
  put32(data.data(), extension->bitmaps);
  put64(data.data() + 8, extension->directory_bytes);
  put64(data.data() + 16, extension->directory_offset);
  header.set(ExtensionType::Bitmaps, std::move(data));
  header.autoclear |= kBitmaps;
}

Result<std::vector<BitmapEntry>> decode_bitmap_directory(std::span<const std::byte> bytes, uint32_t bitmaps,
                                                         const std::string& name) {
  std::vector<BitmapEntry> entries;
  std::size_t at = 0;
  while (at < bytes.size()) {
    const auto index = entries.size();
    if (bytes.size() - at < kFixedBytes || index == bitmaps) {
      return corrupt(name, fmt::format("its bitmap directory of {} bytes does not hold exactly {} bitmaps",
                                       bytes.size(), bitmaps));
    }
    const std::byte* fixed = bytes.data() + at;
    const uint16_t name_bytes = get16(fixed + 18);
    const uint32_t extra_bytes = get32(fixed + 20);
    const uint64_t length = (kFixedBytes + uint64_t{extra_bytes} + name_bytes + 7) / 8 * 8;
    if (length > bytes.size() - at)
      return corrupt(name, fmt::format("bitmap {} goes beyond the end of the bitmap directory", index));
    BitmapEntry entry{.table_offset = get64(fixed),
                      .table_entries = get32(fixed + 8),
                      .flags = get32(fixed + 12),
                      .type = static_cast<uint8_t>(fixed[16]),
                      .granularity_bits = static_cast<uint8_t>(fixed[17]),
                      .name = {},
                      .extra = {fixed + kFixedBytes, fixed + kFixedBytes + extra_bytes}};
    entry.name.assign(reinterpret_cast<const char*>(fixed + kFixedBytes + extra_bytes), name_bytes);
    if (name_bytes == 0 || name_bytes > kLongestBitmapName) {
      return corrupt(name, fmt::format("bitmap {} has a name of {} bytes; it can have 1 to {}", index,
                                       name_bytes, kLongestBitmapName));
    }
    if (entry.granularity_bits < kSmallestGranularityBits ||
        entry.granularity_bits > kLargestGranularityBits) {
      return corrupt(name,
                     fmt::format("bitmap {} has granularity_bits {}; they can be {} to {}", index,
                                 entry.granularity_bits, kSmallestGranularityBits, kLargestGranularityBits));
    }
    entries.push_back(std::move(entry));
    at += length;
  }
  if (entries.size() != bitmaps) {
    return corrupt(name, fmt::format("its bitmap directory of {} bytes holds {} bitmaps, not {}",
                                     bytes.size(), entries.size(), bitmaps));
  }
  return entries;
}

Task<Result<std::vector<BitmapEntry>>> read_bitmap_directory(Node& file, const Header& header) {
  const std::string& name = file.facts().name;
  const auto extension = bitmaps_of(header, name);
  if (!extension) co_return std::unexpected(extension.error());
  if (!*extension) co_return std::vector<BitmapEntry>{};
  const BitmapsExtension& found = **extension;
  const uint64_t size = file.size();
  if (found.directory_offset > size || found.directory_bytes > size - found.directory_offset) {
    co_return corrupt(name, fmt::format("its bitmap directory of {} bytes at {} goes beyond the file's {}",
                                        found.directory_bytes, found.directory_offset, size));
  }
  std::vector<std::byte> bytes(found.directory_bytes);
  SPINDLE_CO_TRY(co_await read_padded(file, found.directory_offset, bytes));
  co_return decode_bitmap_directory(bytes, found.bitmaps, name);
}

Result<std::vector<std::byte>> encode_bitmap_directory(std::span<const BitmapEntry> entries,
                                                       const std::string& name) {
  const auto refuse = [&name](std::string detail) {
    return std::unexpected(BoxedError(Error::invalid("write bitmaps of", name, std::move(detail))));
  };
  if (entries.size() > kMostBitmaps)
    return refuse(fmt::format("an image can have {} bitmaps, and no more", kMostBitmaps));
  std::vector<std::byte> bytes;
  for (const BitmapEntry& entry : entries) {
    if (entry.name.empty() || entry.name.size() > kLongestBitmapName)
      return refuse(fmt::format("a bitmap's name can have 1 to {} bytes", kLongestBitmapName));
    const std::size_t at = bytes.size();
    const std::size_t length = (kFixedBytes + entry.extra.size() + entry.name.size() + 7) / 8 * 8;
    if (at + length > kLargestBitmapDirectory)
      return refuse(
          fmt::format("the bitmap directory would be larger than {} bytes", kLargestBitmapDirectory));
    bytes.resize(at + length);
    std::byte* fixed = bytes.data() + at;
    put64(fixed, entry.table_offset);
    put32(fixed + 8, entry.table_entries);
    put32(fixed + 12, entry.flags);
    fixed[16] = static_cast<std::byte>(entry.type);
    fixed[17] = static_cast<std::byte>(entry.granularity_bits);
    put16(fixed + 18, static_cast<uint16_t>(entry.name.size()));
    put32(fixed + 20, static_cast<uint32_t>(entry.extra.size()));
    std::byte* rest = std::ranges::copy(entry.extra, fixed + kFixedBytes).out;
    std::memcpy(rest, entry.name.data(), entry.name.size());
  }
  return bytes;
}

Result<> check_bitmap_table(const BitmapEntry& entry, const Layout& layout, uint64_t file_size,
                            const std::string& name) {
  const uint64_t bytes = uint64_t{entry.table_entries} * sizeof(uint64_t), offset = entry.table_offset;
  if (entry.table_entries > kMostBitmapTableEntries || layout.in_cluster(offset) != 0 ||
      (bytes != 0 && (offset == 0 || offset > file_size || bytes > file_size - offset))) {
    return corrupt(name,
                   fmt::format("the table of bitmap {}, {} bytes at {}, begins at no cluster, goes beyond "
                               "the file's {} or is too large",
                               entry.name, bytes, offset, file_size));
  }
  return {};
}

Task<Result<std::vector<uint64_t>>> read_bitmap_table(Node& file, const BitmapEntry& entry, uint64_t first,
                                                      uint64_t count) {
  co_return co_await read_words(file, entry.table_offset + first * sizeof(uint64_t), count);
}

uint64_t bitmap_table_entries(const Layout& layout, uint64_t disk_size, unsigned granularity_bits) {
  const uint64_t rest = disk_size & ((uint64_t{1} << granularity_bits) - 1);
  const uint64_t bits = (disk_size >> granularity_bits) + (rest != 0 ? 1 : 0);
  return layout.clusters(bits / 8 + (bits % 8 != 0 ? 1 : 0));
}

}  // namespace spindle::qcow2
