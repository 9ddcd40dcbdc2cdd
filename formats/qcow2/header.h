// The header of a qcow2 image: its fields, its extensions, and the backing file's name, all in the first
// cluster.
//
// What is not understood is kept: unknown extensions and the bytes of a longer header go back as they came.
// Unknown incompatible features are refused by the names that the image itself gives them, unknown compatible
// ones are kept, and unknown autoclear ones are cleared by whoever writes (clear_unknown_autoclear()), as the
// format asks.
//
// Nothing here reads a table; offsets are checked for alignment and against the file's end, so that whoever
// reads them may.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "block/node.h"
#include "formats/qcow2/layout.h"

namespace spindle::qcow2 {

inline constexpr uint32_t kMagic = 0x514649fb;  // "QFI\xfb"
inline constexpr uint32_t kHeaderBytesV2 = 72;
inline constexpr uint32_t kHeaderBytesV3 = 104;
inline constexpr uint32_t kHeaderBytesWithCompression = 112;
/// QEMU's limit, so that no image is made here that it cannot open.
inline constexpr uint32_t kMostSnapshots = 65536;

/// Bits of incompatible_features.
inline constexpr uint64_t kDirty = 1 << 0;
inline constexpr uint64_t kCorrupt = 1 << 1;
inline constexpr uint64_t kExternalData = 1 << 2;
inline constexpr uint64_t kCompressionType = 1 << 3;
inline constexpr uint64_t kExtendedL2 = 1 << 4;
inline constexpr uint64_t kKnownIncompatible = 0x1f;
/// Of compatible_features.
inline constexpr uint64_t kLazyRefcounts = 1 << 0;
/// Of autoclear_features.
inline constexpr uint64_t kBitmaps = 1 << 0;
inline constexpr uint64_t kRawExternalData = 1 << 1;
inline constexpr uint64_t kKnownAutoclear = 0x3;

enum class Compression : uint8_t { Zlib = 0, Zstd = 1 };

enum class ExtensionType : uint32_t {
  End = 0,
  BackingFormat = 0xe2792aca,
  FeatureNames = 0x6803f857,
  Bitmaps = 0x23852875,
  Encryption = 0x0537be77,
  DataFile = 0x44415441,
};

struct Extension {
  uint32_t type = 0;
  std::vector<std::byte> data;
};

struct Header {
  uint32_t version = 3;
  Layout layout;
  uint64_t disk_size = 0;
  uint32_t crypt_method = 0;  ///< 0 none, 1 AES, 2 LUKS
  uint32_t l1_entries = 0;
  uint64_t l1_offset = 0;
  uint64_t refcount_table_offset = 0;
  uint32_t refcount_table_clusters = 0;
  uint32_t snapshots = 0;
  uint64_t snapshots_offset = 0;
  uint64_t incompatible = 0;
  uint64_t compatible = 0;
  uint64_t autoclear = 0;
  Compression compression = Compression::Zlib;
  std::optional<std::string> backing;
  std::vector<Extension> extensions;  ///< in order, End not among them
  /// Bytes of a version 3 header that lie behind those known here.
  std::vector<std::byte> unknown_fields;

  bool has(uint64_t incompatible_feature) const { return (incompatible & incompatible_feature) != 0; }
  const Extension* find(ExtensionType type) const;
  /// The extension's bytes as a string; nullopt if there is none of that type.
  std::optional<std::string> text_of(ExtensionType type) const;
  /// Replaces the extension of that type, or appends it; removes it if `data` is nullopt.
  void set(ExtensionType type, std::optional<std::vector<std::byte>> data);
  void set_text(ExtensionType type, const std::optional<std::string>& text);
  /// The table of feature names that images made here carry.
  void set_feature_names();
  void clear_unknown_autoclear() { autoclear &= kKnownAutoclear; }
  bool data_is_raw() const { return (autoclear & kRawExternalData) != 0; }
};

/// Where in the header some fields lie, that are changed without the rest.
inline constexpr uint64_t kL1At = 36;             ///< entries (4 bytes), offset (8)
inline constexpr uint64_t kRefcountTableAt = 48;  ///< offset (8), clusters (4)
inline constexpr uint64_t kSnapshotsAt = 60;      ///< count (4), offset (8)
inline constexpr uint64_t kIncompatibleAt = 72;   ///< (8), version 3 only

bool looks_like_qcow2(std::span<const std::byte> head);

struct HeaderRules {
  /// Fields that say where tables lie may be wrong: for a check, which reports them.
  bool tolerate_table_offsets = false;
};
/// What opening for reading needs: sound fields. `file_size` is what the tables' offsets are held against.
/// Errors: Invalid (no qcow2, or fields out of range), NotSupported (version, features, encryption), Corrupt
/// (tables or names that lie where they cannot).
Task<Result<Header>> read_header(Node& file, HeaderRules rules = {});
Result<Header> decode_header(std::span<const std::byte> cluster, uint64_t file_size, const std::string& name,
                             HeaderRules rules = {});

/// The first cluster's used bytes. Invalid if extensions and name do not fit into it.
Result<std::vector<std::byte>> encode_header(const Header& header, const std::string& name);

/// Writes encode_header(), padded with zeroes to whole sectors, at 0. Not durable by itself, and a power cut
/// may tear it between sectors.
Task<Result<>> write_header(Node& file, const Header& header);

}  // namespace spindle::qcow2
