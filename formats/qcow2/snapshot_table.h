// The snapshot table of a qcow2 image: one entry of its own length for each snapshot, one after the other.
//
// An entry's extra data may be longer than what is known here, or shorter than what newer images have; what
// is not understood goes back as it came. Numbers are not believed: where an L1 table lies and how long it is
// is checked by whoever reads it (check_snapshot_l1()).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "block/node.h"
#include "formats/qcow2/header.h"

namespace spindle::qcow2 {

/// QEMU's limits, beside kMostSnapshots.
inline constexpr uint64_t kLargestSnapshotTable = 64 << 20;  ///< bytes
inline constexpr uint32_t kMostSnapshotExtra = 1024;         ///< bytes of extra data

struct Snapshot {
  uint64_t l1_offset = 0;
  uint32_t l1_entries = 0;
  std::string id;  ///< at most 65535 bytes, as the name
  std::string name;
  uint32_t date_seconds = 0;  ///< since 1970
  uint32_t date_nanoseconds = 0;
  uint64_t vm_clock_nanoseconds = 0;
  uint64_t vm_state_size = 0;         ///< bytes; they lie behind the disk, from l1 on as data does
  std::optional<uint64_t> disk_size;  ///< nullopt: not said, which means that of the image
  std::optional<uint64_t> instruction_count;
  std::vector<std::byte> unknown_extra;  ///< extra data behind what is known

  bool operator==(const Snapshot&) const = default;
};

struct SnapshotTable {
  std::vector<Snapshot> snapshots;
  uint64_t bytes = 0;  ///< that the table takes in the file
};

/// The table that the header names; empty without one. Memory: at most what kLargestSnapshotTable bytes hold.
/// Corrupt if it goes beyond the file or the limits.
Task<Result<SnapshotTable>> read_snapshots(Node& file, const Header& header);

/// `count` entries of `bytes`; nullopt if these end before them. Corrupt for an entry beyond the limits.
Result<std::optional<SnapshotTable>> decode_snapshots(std::span<const std::byte> bytes, uint32_t count,
                                                      const std::string& name);

/// Always with the extra data known here, disk_size being `disk_size` where a snapshot does not say. Invalid
/// if ids, names, extra data or the table are too long.
Result<std::vector<std::byte>> encode_snapshots(std::span<const Snapshot> snapshots, uint64_t disk_size,
                                                const std::string& name);

/// Whether the snapshot's L1 table is aligned, inside the file, and not larger than one may be.
Result<> check_snapshot_l1(const Snapshot& snapshot, const Layout& layout, uint64_t file_size,
                           const std::string& name);

}  // namespace spindle::qcow2
