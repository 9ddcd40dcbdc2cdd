// Finding what lies at an offset of the disk, and changing it: L1 and L2 entries.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "block/big_endian.h"
#include "formats/qcow2/qcow_node.h"

namespace spindle {

using qcow2::kCopied;
using qcow2::kOffsetMask;
using qcow2::NodeMutation;

Result<> QcowNode::check_l1(uint64_t offset) const {
  const uint64_t table = l1_[l1_index(offset)] & kOffsetMask;
  if (layout_.in_cluster(table) == 0 && table < child_->size()) [[likely]]
    return {};
  return damaged(
      "read", offset,
      fmt::format("its L1 entry {} points to {:#x}, where no table can be", l1_index(offset), table));
}

std::byte* QcowNode::entries_at_hand(uint64_t offset) {
  if ((l1_[l1_index(offset)] & kOffsetMask) == 0 || !check_l1(offset)) return nullptr;
  return l2_->find(entry_offset(offset));
}

Task<Result<std::byte*>> QcowNode::entries(uint64_t offset) {
  if ((l1_[l1_index(offset)] & kOffsetMask) == 0) return finished(Result<std::byte*>(nullptr));
  if (auto sound = check_l1(offset); !sound)
    return finished(Result<std::byte*>(std::unexpected(std::move(sound.error()))));
  return l2_->get(entry_offset(offset));
}

QcowNode::L2Entry QcowNode::entry_in(const std::byte* entries, uint64_t i) const {
  if (!layout_.extended_l2) return {.entry = big_endian::get64(entries + i * 8), .bitmap = 0};
  return {.entry = big_endian::get64(entries + i * 16), .bitmap = big_endian::get64(entries + i * 16 + 8)};
}

void QcowNode::set_entry(uint64_t offset, std::byte* entries, uint64_t i, L2Entry entry) {
  const uint64_t bytes = layout_.l2_entry_bytes();
  big_endian::put64(entries + i * bytes, entry.entry);
  if (layout_.extended_l2) big_endian::put64(entries + i * bytes + 8, entry.bitmap);
  l2_->mark(entry_offset(offset) + i * bytes, bytes);
}

Task<Result<std::byte*>> QcowNode::entries_to_change(uint64_t offset) {
  while ((l1_[l1_index(offset)] & kCopied) == 0) {
    auto made = co_await make_table(offset);
    if (!made) co_return std::unexpected(std::move(made.error()));
  }
  co_return co_await entries(offset);
}

// A table of its own for the L1 entry of `offset`: an empty one, or a copy of one that a snapshot shares.
Task<Result<>> QcowNode::make_table(uint64_t offset) {
  Turns::Turn turn(table_turns_);
  co_await turn;
  const uint64_t index = l1_index(offset), old = l1_[index] & kOffsetMask;
  if ((l1_[index] & kCopied) != 0) co_return Result<>{};
  if (old != 0) SPINDLE_CO_TRY(check_l1(offset));
  auto taken = co_await space_->take_run(1);
  if (!taken) {
    if (taken.error()->kind == ErrorKind::Corrupt) co_return co_await give_up(*taken.error());
    co_return std::unexpected(std::move(taken.error()));
  }
  const uint64_t table = taken->cluster << layout_.cluster_bits;
  metadata_.add(taken->cluster);
  if (old == 0) {
    l2_->create(table + l2_index(offset) * layout_.l2_entry_bytes());
  } else {
    building_ = table;
    for (uint64_t at = 0; at < layout_.cluster_size(); at += l2_->slice_bytes()) {
      auto from = co_await l2_->get(old + at);
      if (!from) {
        building_ = 0;
        // Its slices may be changed already, but nothing will point to them.
        space_->free(taken->cluster, 1);
        co_return std::unexpected(std::move(from.error()));
      }
      // Making room for the new slice may drop the one it is copied from.
      std::vector<std::byte> bytes(*from, *from + l2_->slice_bytes());
      std::byte* to = l2_->create(table + at);
      std::memcpy(to, bytes.data(), bytes.size());
      l2_->mark(table + at, l2_->slice_bytes());
    }
    building_ = 0;
    space_->free(old >> layout_.cluster_bits, 1);
  }
  if (options_.mutation != NodeMutation::TablesWithPointers) unlinked_.insert(table);
  l1_.set(index, table | kCopied);
  needs_barrier_ = true;
  co_return Result<>{};
}

QcowNode::Run QcowNode::run_in(const std::byte* entries, uint64_t offset, uint64_t length) const {
  const uint64_t unit = layout_.subcluster_size();
  const uint64_t most =
      std::min(length, (clusters_in_slice(offset) << layout_.cluster_bits) - layout_.in_cluster(offset));
  L2Entry entry = entry_in(entries, 0);
  const auto subcluster = [this](uint64_t at) {
    return static_cast<unsigned>(layout_.in_cluster(at) >> layout_.subcluster_bits());
  };
  Run run{.kind = layout_.kind(entry, subcluster(offset)),
          .length = std::min(most, unit - (offset & (unit - 1))),
          .host = entry.host_offset() + layout_.in_cluster(offset),
          .copied = entry.copied(),
          .entry = entry};
  if (run.kind == Kind::Compressed) {
    run.length = std::min(most, layout_.cluster_size() - layout_.in_cluster(offset));
    return run;
  }
  const bool placed = run.kind == Kind::Data || run.kind == Kind::ZeroAllocated;
  for (uint64_t i = 0; run.length < most;) {
    const uint64_t at = offset + run.length;
    if (layout_.in_cluster(at) == 0) entry = entry_in(entries, ++i);
    if (layout_.kind(entry, subcluster(at)) != run.kind || (placed && entry.copied() != run.copied)) break;
    if (placed && entry.host_offset() + layout_.in_cluster(at) != run.host + run.length) break;
    run.length = std::min(most, run.length + unit);
  }
  return run;
}

Result<> QcowNode::check_run(const char* operation, uint64_t offset, const Run& run) const {
  switch (run.kind) {
    case Kind::Unallocated:
    case Kind::Zero:
    case Kind::Compressed:
      return {};
    case Kind::Invalid:
      return damaged(operation, offset, "the bits of its L2 entry contradict each other");
    case Kind::Data:
    case Kind::ZeroAllocated:
      break;
  }
  const uint64_t place = run.entry.host_offset();
  if (layout_.in_cluster(place) != 0)
    return damaged(operation, offset,
                   fmt::format("its L2 entry points to {:#x}, which is no cluster's start", place));
  if (data_) return {};
  if (place == 0) return damaged(operation, offset, "its L2 entry points to the header");
  const uint64_t last = layout_.cluster_start(run.host + run.length - 1);
  if (last < child_->size()) [[likely]]
    return {};
  return damaged(operation, offset,
                 fmt::format("its L2 entry points to {:#x}, and the image has only {} bytes: it was cut off",
                             last, child_->size()));
}

Task<Result<QcowNode::Run>> QcowNode::run_at(const char* operation, uint64_t offset, uint64_t length) {
  auto entries = co_await this->entries(offset);
  if (!entries) co_return std::unexpected(std::move(entries.error()));
  if (!*entries) {
    const uint64_t covers = layout_.l1_entry_covers();
    co_return Run{.kind = Kind::Unallocated, .length = std::min(length, covers - (offset & (covers - 1)))};
  }
  const Run run = run_in(*entries, offset, length);
  if (auto sound = check_run(operation, offset, run); !sound)
    co_return std::unexpected(std::move(sound.error()));
  co_return run;
}

// Nothing in memory points to what `entry` did: it is free once nothing in the file does.
void QcowNode::free_entry(L2Entry entry) {
  if (entry.compressed()) {
    const qcow2::CompressedPlace place = layout_.compressed_place(entry.entry);
    const uint64_t first = place.offset >> layout_.cluster_bits;
    space_->free(first, ((place.offset + place.bytes - 1) >> layout_.cluster_bits) - first + 1);
  } else if (!data_ && entry.host_offset() != 0) {
    space_->free(entry.host_offset() >> layout_.cluster_bits, 1);
  }
}

}  // namespace spindle
