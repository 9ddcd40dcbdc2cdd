#include "formats/qcow2/snapshot_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "block/big_endian.h"
#include "formats/qcow2/table_io.h"

namespace spindle::qcow2 {
namespace {

using namespace big_endian;

constexpr std::size_t kFixedBytes = 40;
constexpr std::size_t kKnownExtra = 24;
constexpr std::size_t kFirstPiece = 64 << 10;
constexpr uint64_t kNoInstructionCount = ~uint64_t{0};

std::unexpected<BoxedError> corrupt(const std::string& name, std::string detail) {
  return std::unexpected(BoxedError(Error{.kind = ErrorKind::Corrupt,
                                          .operation = "read snapshots of",
                                          .node = name,
                                          .detail = std::move(detail)}));
}

std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void decode_extra(std::span<const std::byte> extra, Snapshot& snapshot) {
  if (extra.size() >= 8) snapshot.vm_state_size = get64(extra.data());
  if (extra.size() >= 16) snapshot.disk_size = get64(extra.data() + 8);
  if (extra.size() >= 24) {
    const uint64_t count = get64(extra.data() + 16);
    if (count != kNoInstructionCount) snapshot.instruction_count = count;
    snapshot.unknown_extra.assign(extra.begin() + kKnownExtra, extra.end());
  }
}

}  // namespace

Result<std::optional<SnapshotTable>> decode_snapshots(std::span<const std::byte> bytes, uint32_t count,
                                                      const std::string& name) {
  SnapshotTable table;
  uint64_t at = 0;
  for (uint32_t i = 0; i < count; ++i) {
    at = (at + 7) / 8 * 8;
    if (at + kFixedBytes > bytes.size()) return std::nullopt;
    const std::byte* entry = bytes.data() + at;
    const uint16_t id_bytes = get16(entry + 12), name_bytes = get16(entry + 14);
    const uint32_t extra_bytes = get32(entry + 36);
    if (extra_bytes > kMostSnapshotExtra) {
      return corrupt(name, fmt::format("snapshot {} has {} bytes of extra data; at most {} can be used here",
                                       i, extra_bytes, kMostSnapshotExtra));
    }
    const uint64_t length = kFixedBytes + uint64_t{extra_bytes} + id_bytes + name_bytes;
    if (at + length > kLargestSnapshotTable) {
      return corrupt(name,
                     fmt::format("the table of {} snapshots is larger than {} bytes, and more cannot be "
                                 "used here",
                                 count, kLargestSnapshotTable));
    }
    if (at + length > bytes.size()) return std::nullopt;
    const auto rest = bytes.subspan(at + kFixedBytes, length - kFixedBytes);
    Snapshot snapshot{.l1_offset = get64(entry),
                      .l1_entries = get32(entry + 8),
                      .id = text(rest.subspan(extra_bytes, id_bytes)),
                      .name = text(rest.subspan(extra_bytes + id_bytes)),
                      .date_seconds = get32(entry + 16),
                      .date_nanoseconds = get32(entry + 20),
                      .vm_clock_nanoseconds = get64(entry + 24),
                      .vm_state_size = get32(entry + 32),
                      .disk_size = std::nullopt,
                      .instruction_count = std::nullopt,
                      .unknown_extra = {}};
    decode_extra(rest.first(extra_bytes), snapshot);
    table.snapshots.push_back(std::move(snapshot));
    at += length;
  }
  table.bytes = at;
  return table;
}

Task<Result<SnapshotTable>> read_snapshots(Node& file, const Header& header) {
  const std::string& name = file.facts().name;
  if (header.snapshots == 0) co_return SnapshotTable{};
  const uint64_t offset = header.snapshots_offset, size = file.size();
  if (header.layout.in_cluster(offset) != 0 || offset == 0 || offset >= size) {
    co_return corrupt(name, fmt::format("the snapshot table lies at {}, which is no cluster of the file's {} "
                                        "bytes",
                                        offset, size));
  }
  // Its length is only known by reading it, and most are short.
  const uint64_t most = std::min(size - offset, kLargestSnapshotTable);
  for (uint64_t length = std::min<uint64_t>(kFirstPiece, most);; length = std::min(length * 8, most)) {
    std::vector<std::byte> bytes(length);
    SPINDLE_CO_TRY(co_await read_padded(file, offset, bytes));
    auto table = decode_snapshots(bytes, header.snapshots, name);
    if (!table) co_return std::unexpected(std::move(table.error()));
    if (*table) co_return std::move(**table);
    if (length == most) {
      co_return corrupt(name, fmt::format("the table of {} snapshots at {} does not end within {} bytes",
                                          header.snapshots, offset, most));
    }
  }
}

Result<std::vector<std::byte>> encode_snapshots(std::span<const Snapshot> snapshots, uint64_t disk_size,
                                                const std::string& name) {
  const auto refuse = [&name](std::string detail) {
    return std::unexpected(BoxedError(Error::invalid("write snapshots of", name, std::move(detail))));
  };
  constexpr std::size_t kLongest = std::numeric_limits<uint16_t>::max();
  if (snapshots.size() > kMostSnapshots)
    return refuse(fmt::format("an image can have {} snapshots, and no more", kMostSnapshots));
  std::vector<std::byte> bytes;
  for (const Snapshot& snapshot : snapshots) {
    if (snapshot.id.size() > kLongest || snapshot.name.size() > kLongest)
      return refuse(fmt::format("a snapshot's id and name can have {} bytes each", kLongest));
    if (snapshot.unknown_extra.size() > kMostSnapshotExtra - kKnownExtra)
      return refuse(fmt::format("a snapshot can have {} bytes of extra data", kMostSnapshotExtra));
    const std::size_t at = (bytes.size() + 7) / 8 * 8;
    const std::size_t extra_bytes = kKnownExtra + snapshot.unknown_extra.size();
    const std::size_t length = kFixedBytes + extra_bytes + snapshot.id.size() + snapshot.name.size();
    if (at + length > kLargestSnapshotTable)
      return refuse(
          fmt::format("the table of snapshots would be larger than {} bytes", kLargestSnapshotTable));
    bytes.resize(at + length);
    std::byte* entry = bytes.data() + at;
    put64(entry, snapshot.l1_offset);
    put32(entry + 8, snapshot.l1_entries);
    put16(entry + 12, static_cast<uint16_t>(snapshot.id.size()));
    put16(entry + 14, static_cast<uint16_t>(snapshot.name.size()));
    put32(entry + 16, snapshot.date_seconds);
    put32(entry + 20, snapshot.date_nanoseconds);
    put64(entry + 24, snapshot.vm_clock_nanoseconds);
    // The narrow field is for readers that know no extra data; it cannot say more than it holds.
    const bool narrow = snapshot.vm_state_size <= std::numeric_limits<uint32_t>::max();
    put32(entry + 32, narrow ? static_cast<uint32_t>(snapshot.vm_state_size) : 0);
    put32(entry + 36, static_cast<uint32_t>(extra_bytes));
    put64(entry + 40, snapshot.vm_state_size);
    put64(entry + 48, snapshot.disk_size.value_or(disk_size));
    put64(entry + 56, snapshot.instruction_count.value_or(kNoInstructionCount));
    std::byte* rest = std::ranges::copy(snapshot.unknown_extra, entry + kFixedBytes + kKnownExtra).out;
    if (!snapshot.id.empty()) std::memcpy(rest, snapshot.id.data(), snapshot.id.size());
    if (!snapshot.name.empty())
      std::memcpy(rest + snapshot.id.size(), snapshot.name.data(), snapshot.name.size());
  }
  return bytes;
}

Result<> check_snapshot_l1(const Snapshot& snapshot, const Layout& layout, uint64_t file_size,
                           const std::string& name) {
  const uint64_t bytes = uint64_t{snapshot.l1_entries} * sizeof(uint64_t);
  if (bytes > kLargestL1Bytes) {
    return corrupt(name,
                   fmt::format("the L1 table of snapshot {} has {} entries; at most {} can be used here",
                               snapshot.id, snapshot.l1_entries, kLargestL1Bytes / sizeof(uint64_t)));
  }
  const uint64_t offset = snapshot.l1_offset;
  if (bytes != 0 &&
      (layout.in_cluster(offset) != 0 || offset == 0 || offset > file_size || bytes > file_size - offset)) {
    return corrupt(name, fmt::format("the L1 table of snapshot {}, {} bytes at {}, begins at no cluster or "
                                     "goes beyond the file's {}",
                                     snapshot.id, bytes, offset, file_size));
  }
  return {};
}

}  // namespace spindle::qcow2
