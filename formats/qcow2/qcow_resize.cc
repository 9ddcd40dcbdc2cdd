// Another size of the disk.
//
//   larger   what lies behind the old end is made to read as zeroes, and a larger L1 table is made if it
//   takes
//            one; when that is durable, the header says the new size
//   smaller  the header says the new size; when that is durable, what lies behind it is given up
#include <fmt/format.h>

#include <algorithm>

#include "formats/qcow2/qcow_node.h"

namespace spindle {

using qcow2::NodeMutation;

namespace {

constexpr uint64_t kSizeAt = 24;

}  // namespace

Task<Result<>> QcowNode::resize(uint64_t size) {
  SPINDLE_CO_TRY(check_modification("resize", 0, 0));
  if (size == disk_size_) co_return Result<>{};
  const auto refuse = [this](std::string detail) {
    return std::unexpected(Error{.kind = ErrorKind::NotSupported,
                                 .operation = "resize",
                                 .node = facts_.name,
                                 .detail = std::move(detail)});
  };
  if (header_.snapshots != 0 && header_.version < 3)
    co_return refuse(
        "an image of version 2 with snapshots keeps its size; delete them, or amend it to compat=1.1");
  if (header_.find(qcow2::ExtensionType::Bitmaps))
    co_return refuse("it has dirty bitmaps, which are made for its size; remove them first");
  if (size > uint64_t{1} << 62 || layout_.l1_entries(size) * 8 > qcow2::kLargestL1Bytes) {
    co_return refuse(fmt::format("clusters of {} bytes are enough for a disk of {} bytes at most",
                                 layout_.cluster_size(),
                                 qcow2::kLargestL1Bytes / 8 * layout_.l1_entry_covers()));
  }
  auto resized = size > disk_size_ ? co_await grow(size) : co_await shrink(size);
  if (!resized && resized.error()->kind == ErrorKind::FlushFailed) broken_ = true;
  co_return resized;
}

Task<Result<>> QcowNode::grow(uint64_t size) {
  if (data_) {
    const uint64_t needed = header_.data_is_raw() ? size : layout_.clusters(size) << layout_.cluster_bits;
    if (data_->size() < needed) SPINDLE_CO_TRY(co_await data_->resize(needed));
  }
  const uint64_t old = disk_size_;
  const uint64_t behind = layout_.clusters(old) << layout_.cluster_bits;
  if (const uint64_t entries = layout_.l1_entries(size); entries > l1_.size()) {
    SPINDLE_CO_TRY(co_await move_l1(entries));
  }
  if (options_.mutation != NodeMutation::TailNotZeroed) {
    if (old < behind) SPINDLE_CO_TRY(co_await zero_part(old, std::min(size, behind) - old, {}));
    if (size > behind) {
      SPINDLE_CO_TRY(co_await clear_beyond(behind, layout_.clusters(size) << layout_.cluster_bits));
    }
  }
  if (options_.mutation != NodeMutation::SizeBeforeTable) SPINDLE_CO_TRY(co_await commit_->flush());
  set_header64(kSizeAt, size);
  if (options_.mutation == NodeMutation::SizeBeforeTable) size_with_counts_ = true;
  auto flushed = co_await commit_->flush();
  if (!flushed) {
    set_header64(kSizeAt, old);
    co_return flushed;
  }
  disk_size_ = size;
  co_return flushed;
}

Task<Result<>> QcowNode::shrink(uint64_t size) {
  const uint64_t old = disk_size_;
  const bool early = options_.mutation == NodeMutation::EntriesBeforeSize;
  SPINDLE_CO_TRY(co_await commit_->flush());
  const uint64_t from = layout_.clusters(size) << layout_.cluster_bits;
  const uint64_t to = layout_.clusters(old) << layout_.cluster_bits;
  if (early) {
    SPINDLE_CO_TRY(co_await clear_beyond(from, to));
    SPINDLE_CO_TRY(co_await commit_->flush());
  }
  set_header64(kSizeAt, size);
  auto flushed = co_await commit_->flush();
  if (!flushed) {
    set_header64(kSizeAt, old);
    co_return flushed;
  }
  disk_size_ = size;
  SPINDLE_CO_TRY(co_await clear_beyond(from, to));
  SPINDLE_CO_TRY(co_await flush());
  if (data_ && header_.data_is_raw() && data_->size() > size) co_return co_await data_->resize(size);
  co_return Result<>{};
}

// [from, to), whole clusters behind the disk's end: its entries are given up, so that it reads as zeroes if
// the disk ever reaches there, backing file or not.
Task<Result<>> QcowNode::clear_beyond(uint64_t from, uint64_t to) {
  const uint64_t covers = layout_.l1_entry_covers();
  bool any = false;
  for (uint64_t at = from; at < to;) {
    const uint64_t table_end = std::min(to, (at & ~(covers - 1)) + covers);
    const bool shows_backing = backing_ && at < backing_->size();
    if ((l1_[l1_index(at)] & qcow2::kOffsetMask) == 0 && !shows_backing) {
      at = table_end;
      continue;
    }
    if (shows_backing && header_.version < 3) {
      SPINDLE_CO_TRY(co_await write_zero_buffers(at, layout_.cluster_size()));
      at += layout_.cluster_size();
      continue;
    }
    auto entries = co_await entries_to_change(at);
    if (!entries) co_return std::unexpected(std::move(entries.error()));
    const uint64_t count = std::min(clusters_in_slice(at), (table_end - at) >> layout_.cluster_bits);
    for (uint64_t i = 0; i < count; ++i) {
      const L2Entry old = entry_in(*entries, i);
      L2Entry now;
      if (backing_ && at + (i << layout_.cluster_bits) < backing_->size())
        now = layout_.extended_l2 ? L2Entry{.entry = 0, .bitmap = ~uint64_t{0} << 32}
                                  : L2Entry{.entry = qcow2::kZero};
      if (now == old) continue;
      set_entry(at, *entries, i, now);
      free_entry(old);
      any = true;
    }
    at += count << layout_.cluster_bits;
  }
  if (!any) co_return Result<>{};
  co_return co_await commit_->changed();
}

Task<Result<>> QcowNode::move_l1(uint64_t entries) {
  const uint64_t clusters = layout_.clusters(entries * 8);
  auto taken = co_await space_->take_run(clusters);
  if (!taken) co_return std::unexpected(std::move(taken.error()));
  const uint64_t old = l1_.offset() >> layout_.cluster_bits, old_clusters = layout_.clusters(l1_.bytes());
  metadata_.add(taken->cluster, clusters);
  l1_.move(taken->cluster << layout_.cluster_bits, entries);
  set_header32(qcow2::kL1At, static_cast<uint32_t>(entries));
  set_header64(qcow2::kL1At + 4, l1_.offset());
  header_.l1_entries = static_cast<uint32_t>(entries);
  space_->free(old, old_clusters);
  co_return Result<>{};
}

}  // namespace spindle
