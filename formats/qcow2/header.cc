#include "formats/qcow2/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "block/big_endian.h"

namespace spindle::qcow2 {
namespace {

using namespace big_endian;

constexpr std::size_t kVersionAt = 4, kBackingAt = 8, kBackingSizeAt = 16, kClusterBitsAt = 20, kSizeAt = 24,
                      kCryptAt = 32, kCompatibleAt = 80, kAutoclearAt = 88, kRefcountOrderAt = 96,
                      kHeaderLengthAt = 100, kCompressionAt = 104;
constexpr uint64_t kLongestBackingName = 1023;
constexpr std::size_t kFeatureBytes = 48;

std::unexpected<BoxedError> refuse(const std::string& name, std::string detail,
                                   ErrorKind kind = ErrorKind::Invalid) {
  Error error = Error::invalid("open", name, std::move(detail));
  error.kind = kind;
  return std::unexpected(BoxedError(std::move(error)));
}

// What the image calls the bits of `features`, which are incompatible ones: "bit 7 (\"frobs\"), bit 9".
std::string feature_names(const Header& header, uint64_t features) {
  std::string names;
  const Extension* table = header.find(ExtensionType::FeatureNames);
  for (unsigned bit = 0; bit < 64; ++bit) {
    if ((features >> bit & 1) == 0) continue;
    names += fmt::format("{}bit {}", names.empty() ? "" : ", ", bit);
    for (std::size_t at = 0; table && at + kFeatureBytes <= table->data.size(); at += kFeatureBytes) {
      const std::byte* row = table->data.data() + at;
      if (row[0] != std::byte{} || static_cast<unsigned>(row[1]) != bit) continue;
      std::string name(reinterpret_cast<const char*>(row + 2), kFeatureBytes - 2);
      name = name.substr(0, name.find('\0'));
      std::ranges::replace_if(
          name, [](unsigned char c) { return c < ' ' || c >= 127; }, '?');
      names += fmt::format(" (\"{}\")", name);
      break;
    }
  }
  return names;
}

Result<> decode_extensions(std::span<const std::byte> cluster, uint64_t from, uint64_t end, Header& header,
                           const std::string& name) {
  for (uint64_t at = from; at + 8 <= end;) {
    const uint32_t type = get32(cluster.data() + at), length = get32(cluster.data() + at + 4);
    if (type == static_cast<uint32_t>(ExtensionType::End)) return {};
    at += 8;
    if (length > end - at) {
      return refuse(name,
                    fmt::format("its header extension 0x{:08x} of {} bytes at {} goes beyond the {} bytes "
                                "there are for it",
                                type, length, at - 8, end),
                    ErrorKind::Corrupt);
    }
    const auto data = cluster.subspan(at, length);
    header.extensions.push_back({.type = type, .data = {data.begin(), data.end()}});
    at += (uint64_t{length} + 7) / 8 * 8;
  }
  return {};
}

// A table at `offset` of `bytes`: aligned, behind the header, and inside the file.
Result<> check_table(const char* what, uint64_t offset, uint64_t bytes, const Header& header,
                     uint64_t file_size, const std::string& name) {
  if (header.layout.in_cluster(offset) != 0 || offset == 0) {
    return refuse(name,
                  fmt::format("its {} lies at {}, which no cluster of its {} bytes begins at", what, offset,
                              header.layout.cluster_size()),
                  ErrorKind::Corrupt);
  }
  if (offset > file_size || bytes > file_size - offset) {
    return refuse(name,
                  fmt::format("its {} of {} bytes at {} goes beyond the file's {}; it was cut off, or is "
                              "damaged",
                              what, bytes, offset, file_size),
                  ErrorKind::Corrupt);
  }
  return {};
}

Result<> check_tables(const Header& header, uint64_t file_size, const std::string& name) {
  const Layout& layout = header.layout;
  if (header.l1_entries != 0) {
    SPINDLE_TRY(
        check_table("L1 table", header.l1_offset, uint64_t{header.l1_entries} * 8, header, file_size, name));
  }
  SPINDLE_TRY(check_table("refcount table", header.refcount_table_offset,
                          uint64_t{header.refcount_table_clusters} << layout.cluster_bits, header, file_size,
                          name));
  if (header.snapshots != 0) {
    SPINDLE_TRY(check_table("snapshot table", header.snapshots_offset, 1, header, file_size, name));
  }
  if (header.refcount_table_clusters == 0)
    return refuse(name, "it has no refcount table", ErrorKind::Corrupt);
  if (header.l1_entries < layout.l1_entries(header.disk_size)) {
    return refuse(name,
                  fmt::format("its L1 table has {} entries; a disk of {} bytes needs {}", header.l1_entries,
                              header.disk_size, layout.l1_entries(header.disk_size)),
                  ErrorKind::Corrupt);
  }
  return {};
}

Result<> decode_version3(std::span<const std::byte> cluster, Header& header, uint32_t& header_length,
                         const std::string& name) {
  if (cluster.size() < kHeaderBytesV3)
    return refuse(name, "it was cut off within its header", ErrorKind::Corrupt);
  header.incompatible = get64(cluster.data() + kIncompatibleAt);
  header.compatible = get64(cluster.data() + kCompatibleAt);
  header.autoclear = get64(cluster.data() + kAutoclearAt);
  const uint32_t order = get32(cluster.data() + kRefcountOrderAt);
  header_length = get32(cluster.data() + kHeaderLengthAt);
  if (order > 6) return refuse(name, fmt::format("its refcount_order is {}; it can be 0 to 6", order));
  header.layout.refcount_order = order;
  if (header_length < kHeaderBytesV3 || header_length > cluster.size() || header_length % 8 != 0) {
    return refuse(name,
                  fmt::format("its header has a length of {}; it must be a multiple of 8 from 104 to {}",
                              header_length, cluster.size()));
  }
  header.layout.extended_l2 = header.has(kExtendedL2);
  header.layout.external_data = header.has(kExternalData);
  unsigned compression = 0;
  if (header_length > kCompressionAt) {
    compression = static_cast<unsigned>(cluster[kCompressionAt]);
    const auto rest = cluster.subspan(std::min<std::size_t>(header_length, kHeaderBytesWithCompression),
                                      header_length - std::min(header_length, kHeaderBytesWithCompression));
    header.unknown_fields.assign(rest.begin(), rest.end());
  }
  if (compression > 1) {
    return refuse(
        name, fmt::format("its compression type is {}; only 0 (zlib) and 1 (zstd) are known", compression),
        ErrorKind::NotSupported);
  }
  if ((compression != 0) != header.has(kCompressionType)) {
    return refuse(name, "its compression type and the feature bit that tells of it contradict each other",
                  ErrorKind::Corrupt);
  }
  header.compression = static_cast<Compression>(compression);
  return {};
}

Result<> check_features(const Header& header, const std::string& name) {
  if (const uint64_t unknown = header.incompatible & ~kKnownIncompatible; unknown != 0) {
    return refuse(name,
                  fmt::format("it uses features that are not known here: {}", feature_names(header, unknown)),
                  ErrorKind::NotSupported);
  }
  if (header.crypt_method != 0) {
    const char* method = header.crypt_method == 2 ? "LUKS" : header.crypt_method == 1 ? "AES" : "unknown";
    return refuse(name,
                  fmt::format("it is encrypted (method {}, {}); convert it to one that is not with qemu-img",
                              header.crypt_method, method),
                  ErrorKind::NotSupported);
  }
  return {};
}

}  // namespace

bool looks_like_qcow2(std::span<const std::byte> head) {
  return head.size() >= 8 && get32(head.data()) == kMagic && get32(head.data() + kVersionAt) >= 2;
}

const Extension* Header::find(ExtensionType type) const {
  const auto found = std::ranges::find(extensions, static_cast<uint32_t>(type), &Extension::type);
  return found == extensions.end() ? nullptr : &*found;
}

std::optional<std::string> Header::text_of(ExtensionType type) const {
  const Extension* extension = find(type);
  if (!extension) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(extension->data.data()), extension->data.size());
}

void Header::set(ExtensionType type, std::optional<std::vector<std::byte>> data) {
  const auto number = static_cast<uint32_t>(type);
  const auto found = std::ranges::find(extensions, number, &Extension::type);
  if (!data) {
    if (found != extensions.end()) extensions.erase(found);
  } else if (found != extensions.end()) {
    found->data = std::move(*data);
  } else {
    extensions.push_back({.type = number, .data = std::move(*data)});
  }
}

void Header::set_text(ExtensionType type, const std::optional<std::string>& text) {
  if (!text) return set(type, std::nullopt);
  const auto* begin = reinterpret_cast<const std::byte*>(text->data());
  set(type, std::vector<std::byte>(begin, begin + text->size()));
}

void Header::set_feature_names() {
  struct Row {
    uint8_t group;  // 0 incompatible, 1 compatible, 2 autoclear
    uint8_t bit;
    const char* name;
  };
  static constexpr std::array<Row, 8> kRows = {{{0, 0, "dirty bit"},
                                                {0, 1, "corrupt bit"},
                                                {0, 2, "external data file"},
                                                {0, 3, "compression type"},
                                                {0, 4, "extended L2 entries"},
                                                {1, 0, "lazy refcounts"},
                                                {2, 0, "bitmaps"},
                                                {2, 1, "raw external data"}}};
  std::vector<std::byte> table(kRows.size() * kFeatureBytes);
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    std::byte* row = table.data() + i * kFeatureBytes;
    row[0] = std::byte{kRows[i].group};
    row[1] = std::byte{kRows[i].bit};
    std::memcpy(row + 2, kRows[i].name, std::strlen(kRows[i].name));
  }
  set(ExtensionType::FeatureNames, std::move(table));
}

Result<Header> decode_header(std::span<const std::byte> cluster, uint64_t file_size, const std::string& name,
                             HeaderRules rules) {
  if (cluster.size() < kHeaderBytesV2 || get32(cluster.data()) != kMagic)
    return refuse(name, "it is no qcow2 image: its first bytes are others");
  Header header;
  header.version = get32(cluster.data() + kVersionAt);
  if (header.version != 2 && header.version != 3) {
    return refuse(
        name, fmt::format("it is a qcow image of version {}; only 2 and 3 are known here", header.version),
        ErrorKind::NotSupported);
  }
  header.layout.cluster_bits = get32(cluster.data() + kClusterBitsAt);
  if (header.layout.cluster_bits < kSmallestClusterBits || header.layout.cluster_bits > kLargestClusterBits) {
    return refuse(name, fmt::format("its cluster_bits are {}; they can be 9 to 21 (512 bytes to 2 MiB)",
                                    header.layout.cluster_bits));
  }
  cluster = cluster.first(std::min<uint64_t>(cluster.size(), header.layout.cluster_size()));
  header.disk_size = get64(cluster.data() + kSizeAt);
  header.crypt_method = get32(cluster.data() + kCryptAt);
  header.l1_entries = get32(cluster.data() + kL1At);
  header.l1_offset = get64(cluster.data() + kL1At + 4);
  header.refcount_table_offset = get64(cluster.data() + kRefcountTableAt);
  header.refcount_table_clusters = get32(cluster.data() + kRefcountTableAt + 8);
  header.snapshots = get32(cluster.data() + kSnapshotsAt);
  header.snapshots_offset = get64(cluster.data() + kSnapshotsAt + 4);
  uint32_t header_length = kHeaderBytesV2;
  if (header.version == 3) SPINDLE_TRY(decode_version3(cluster, header, header_length, name));
  const uint64_t backing_at = get64(cluster.data() + kBackingAt);
  const uint32_t backing_bytes = get32(cluster.data() + kBackingSizeAt);
  if (backing_at != 0) {
    if (backing_bytes > kLongestBackingName || backing_at > cluster.size() ||
        backing_bytes > cluster.size() - backing_at) {
      return refuse(name,
                    fmt::format("its backing file's name of {} bytes at {} goes beyond the first cluster, or "
                                "is longer than 1023",
                                backing_bytes, backing_at),
                    ErrorKind::Corrupt);
    }
    header.backing.emplace(reinterpret_cast<const char*>(cluster.data() + backing_at), backing_bytes);
  }
  const uint64_t extensions_end = backing_at != 0 ? backing_at : cluster.size();
  SPINDLE_TRY(decode_extensions(cluster, header_length, extensions_end, header, name));
  SPINDLE_TRY(check_features(header, name));
  if (header.layout.extended_l2 && header.layout.cluster_bits < kSmallestExtendedClusterBits) {
    return refuse(name, fmt::format("it has extended L2 entries, but clusters of {} bytes; they need 16 KiB",
                                    header.layout.cluster_size()));
  }
  if (uint64_t{header.l1_entries} * 8 > kLargestL1Bytes)
    return refuse(name, fmt::format("its L1 table has {} entries; at most {} can be used here",
                                    header.l1_entries, kLargestL1Bytes / 8));
  if (uint64_t{header.refcount_table_clusters} << header.layout.cluster_bits >
      std::max(kLargestRefcountTableBytes, header.layout.cluster_size())) {
    return refuse(name, fmt::format("its refcount table has {} clusters; at most {} bytes can be used here",
                                    header.refcount_table_clusters, kLargestRefcountTableBytes));
  }
  if (header.snapshots > kMostSnapshots)
    return refuse(name, fmt::format("it has {} snapshots; at most {} can be used here", header.snapshots,
                                    kMostSnapshots));
  if (header.disk_size > uint64_t{1} << 62)
    return refuse(name, fmt::format("it says it is a disk of {} bytes, which no file offset can name",
                                    header.disk_size));
  if (header.backing && header.data_is_raw())
    return refuse(name, "it has a backing file and raw external data, which cannot be both",
                  ErrorKind::Corrupt);
  if (!rules.tolerate_table_offsets) SPINDLE_TRY(check_tables(header, file_size, name));
  return header;
}

Task<Result<Header>> read_header(Node& file, HeaderRules rules) {
  const std::string& name = file.facts().name;
  const uint64_t size = file.size();
  // As much as a first cluster can be used for here: the longest is 2 MiB, of which few bytes are in use.
  std::vector<std::byte> head(std::min<uint64_t>(size, kSector));
  if (head.size() < kHeaderBytesV2) {
    co_return refuse(name,
                     fmt::format("it has {} bytes and is no qcow2 image: the header alone has 72", size));
  }
  const iovec first{head.data(), head.size()};
  auto read = co_await file.read(0, Buffers(std::span(&first, 1)));
  if (!read) co_return std::unexpected(std::move(read.error()));
  const uint32_t bits = get32(head.data() + kClusterBitsAt);
  if (get32(head.data()) == kMagic && bits >= kSmallestClusterBits && bits <= kLargestClusterBits &&
      size > head.size()) {
    head.resize(std::min<uint64_t>(size, uint64_t{1} << bits));
    const iovec whole{head.data(), head.size()};
    read = co_await file.read(0, Buffers(std::span(&whole, 1)));
    if (!read) co_return std::unexpected(std::move(read.error()));
  }
  co_return decode_header(head, size, name, rules);
}

Result<std::vector<std::byte>> encode_header(const Header& header, const std::string& name) {
  const uint32_t length =
      header.version == 2 ? kHeaderBytesV2
                          : kHeaderBytesWithCompression + static_cast<uint32_t>(header.unknown_fields.size());
  std::vector<std::byte> bytes(length);
  put32(bytes.data(), kMagic);
  put32(bytes.data() + kVersionAt, header.version);
  put32(bytes.data() + kClusterBitsAt, header.layout.cluster_bits);
  put64(bytes.data() + kSizeAt, header.disk_size);
  put32(bytes.data() + kCryptAt, header.crypt_method);
  put32(bytes.data() + kL1At, header.l1_entries);
  put64(bytes.data() + kL1At + 4, header.l1_offset);
  put64(bytes.data() + kRefcountTableAt, header.refcount_table_offset);
  put32(bytes.data() + kRefcountTableAt + 8, header.refcount_table_clusters);
  put32(bytes.data() + kSnapshotsAt, header.snapshots);
  put64(bytes.data() + kSnapshotsAt + 4, header.snapshots_offset);
  if (header.version == 3) {
    put64(bytes.data() + kIncompatibleAt, header.incompatible);
    put64(bytes.data() + kCompatibleAt, header.compatible);
    put64(bytes.data() + kAutoclearAt, header.autoclear);
    put32(bytes.data() + kRefcountOrderAt, header.layout.refcount_order);
    put32(bytes.data() + kHeaderLengthAt, length);
    bytes[kCompressionAt] = static_cast<std::byte>(header.compression);
    std::ranges::copy(header.unknown_fields, bytes.begin() + kHeaderBytesWithCompression);
  }
  const auto append = [&bytes](uint32_t type, std::span<const std::byte> data) {
    const std::size_t at = bytes.size();
    bytes.resize(at + 8 + (data.size() + 7) / 8 * 8);
    put32(bytes.data() + at, type);
    put32(bytes.data() + at + 4, static_cast<uint32_t>(data.size()));
    std::ranges::copy(data, bytes.begin() + static_cast<std::ptrdiff_t>(at + 8));
  };
  for (const Extension& extension : header.extensions) append(extension.type, extension.data);
  append(static_cast<uint32_t>(ExtensionType::End), {});
  if (header.backing) {
    put64(bytes.data() + kBackingAt, bytes.size());
    put32(bytes.data() + kBackingSizeAt, static_cast<uint32_t>(header.backing->size()));
    const auto* text = reinterpret_cast<const std::byte*>(header.backing->data());
    bytes.insert(bytes.end(), text, text + header.backing->size());
  }
  if (bytes.size() > header.layout.cluster_size() ||
      (header.backing && header.backing->size() > kLongestBackingName)) {
    return std::unexpected(Error::invalid(
        "write header of", name,
        fmt::format("header, extensions and backing file's name take {} bytes; there is room for {}, and for "
                    "a name of 1023",
                    bytes.size(), header.layout.cluster_size())));
  }
  return bytes;
}

Task<Result<>> write_header(Node& file, const Header& header) {
  auto bytes = encode_header(header, file.facts().name);
  if (!bytes) co_return std::unexpected(std::move(bytes.error()));
  bytes->resize((bytes->size() + kSector - 1) / kSector * kSector);
  const iovec part{bytes->data(), bytes->size()};
  co_return co_await file.write(0, Buffers(std::span(&part, 1)), {});
}

}  // namespace spindle::qcow2
