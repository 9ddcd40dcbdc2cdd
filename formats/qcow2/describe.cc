#include "formats/qcow2/describe.h"

#include "formats/qcow2/bitmap_directory.h"
#include "formats/qcow2/snapshot_table.h"

namespace spindle::qcow2 {
namespace {

std::vector<FormatFact> facts_of(const Header& header) {
  const bool new_version = header.version == 3;
  std::vector<FormatFact> facts;
  facts.push_back({"compat", std::string(new_version ? "1.1" : "0.10")});
  facts.push_back(
      {"compression type", std::string(header.compression == Compression::Zstd ? "zstd" : "zlib")});
  if (new_version) facts.push_back({"lazy refcounts", (header.compatible & kLazyRefcounts) != 0});
  facts.push_back({"refcount bits", uint64_t{1} << header.layout.refcount_order});
  if (!new_version) return facts;
  if (header.has(kExternalData)) {
    if (auto name = header.text_of(ExtensionType::DataFile)) facts.push_back({"data file", std::move(*name)});
    facts.push_back({"data file raw", header.data_is_raw()});
  }
  facts.push_back({"corrupt", header.has(kCorrupt)});
  facts.push_back({"extended l2", header.has(kExtendedL2)});
  return facts;
}

ImageSnapshot describe(const Snapshot& snapshot, uint64_t disk_size) {
  return {.id = snapshot.id,
          .name = snapshot.name,
          .vm_state_size = snapshot.vm_state_size,
          .disk_size = snapshot.disk_size.value_or(disk_size),
          .date_seconds = snapshot.date_seconds,
          .date_nanoseconds = snapshot.date_nanoseconds,
          .vm_clock_nanoseconds = snapshot.vm_clock_nanoseconds,
          .instruction_count = snapshot.instruction_count};
}

}  // namespace

Task<Result<ImageDescription>> describe(Node& file) {
  const auto header = co_await read_header(file, {.tolerate_table_offsets = true});
  if (!header) co_return std::unexpected(header.error());
  const auto snapshots = co_await read_snapshots(file, *header);
  if (!snapshots) co_return std::unexpected(snapshots.error());
  const auto bitmaps = co_await read_bitmap_directory(file, *header);
  if (!bitmaps) co_return std::unexpected(bitmaps.error());
  ImageDescription description;
  description.virtual_size = header->disk_size;
  description.cluster_size = static_cast<uint32_t>(header->layout.cluster_size());
  description.dirty = header->has(kDirty);
  description.corrupt = header->has(kCorrupt);
  if (header->backing) {
    description.backing =
        OtherFile{.name = *header->backing, .format = header->text_of(ExtensionType::BackingFormat)};
  }
  if (header->has(kExternalData)) {
    description.data_file =
        OtherFile{.name = header->text_of(ExtensionType::DataFile).value_or(""), .format = "raw"};
  }
  description.facts = facts_of(*header);
  for (const Snapshot& snapshot : snapshots->snapshots)
    description.snapshots.push_back(describe(snapshot, header->disk_size));
  for (const BitmapEntry& bitmap : *bitmaps) {
    description.bitmaps.push_back({.name = bitmap.name,
                                   .granularity = bitmap.granularity(),
                                   .in_use = (bitmap.flags & kBitmapInUse) != 0,
                                   .enabled = (bitmap.flags & kBitmapAuto) != 0});
  }
  co_return description;
}

}  // namespace spindle::qcow2
