#include "formats/qcow2/table_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "formats/qcow2/layout.h"

namespace spindle::qcow2 {
namespace {

struct Loaded {
  std::vector<std::coroutine_handle<>>& waiters;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) { waiters.push_back(handle); }
  void await_resume() const noexcept {}
};

}  // namespace

TableCache::TableCache(Node& file, uint64_t cluster_size, uint64_t max_bytes)
    : file_(file),
      slice_bytes_(std::min(cluster_size, kLargestSlice)),
      most_clean_(std::max<uint64_t>(max_bytes / slice_bytes_, 1)) {}

TableCache::Slice* TableCache::lookup(uint64_t offset) {
  const uint64_t start = offset & ~(slice_bytes_ - 1);
  if (last_ && last_->offset == start) [[likely]]
    return last_;
  const auto found = slices_.find(start / slice_bytes_);
  return found == slices_.end() ? nullptr : &found->second.slice;
}

void TableCache::unlist(Slice& slice) {
  if (!slice.listed) return;
  (slice.older ? slice.older->newer : oldest_) = slice.newer;
  (slice.newer ? slice.newer->older : newest_) = slice.older;
  slice.older = slice.newer = nullptr;
  slice.listed = false;
  --clean_;
}

void TableCache::list(Slice& slice) {
  slice.older = newest_;
  slice.newer = nullptr;
  (newest_ ? newest_->newer : oldest_) = &slice;
  newest_ = &slice;
  slice.listed = true;
  ++clean_;
}

void TableCache::touch(Slice& slice) {
  if (last_ == &slice) return;
  last_ = &slice;
  if (!slice.listed || newest_ == &slice) return;
  unlist(slice);
  list(slice);
}

void TableCache::erase(Slice& slice) {
  unlist(slice);
  if (last_ == &slice) last_ = nullptr;
  slices_.erase(slice.offset / slice_bytes_);
}

void TableCache::shrink() {
  while (clean_ > most_clean_ && oldest_ != newest_) erase(*oldest_);
}

TableCache::Slice& TableCache::insert(uint64_t offset) {
  const uint64_t start = offset & ~(slice_bytes_ - 1);
  auto [place, fresh] = slices_.try_emplace(start / slice_bytes_);
  Entry& entry = place->second;
  if (fresh) {
    entry.memory.reset(new (std::align_val_t{kLargestSlice}) std::byte[slice_bytes_]);
    entry.slice.offset = start;
    entry.slice.bytes = entry.memory.get();
    list(entry.slice);
    shrink();
  }
  return entry.slice;
}

std::byte* TableCache::find(uint64_t offset) {
  Slice* slice = lookup(offset);
  if (!slice) return nullptr;
  touch(*slice);
  return slice->bytes + (offset & (slice_bytes_ - 1));
}

Task<Result<std::byte*>> TableCache::get(uint64_t offset) {
  const uint64_t start = offset & ~(slice_bytes_ - 1), number = start / slice_bytes_;
  while (true) {
    if (std::byte* found = find(offset)) co_return found;
    if (const auto running = loading_.find(number); running != loading_.end()) {
      Loaded loaded{running->second};
      co_await loaded;
      continue;
    }
    if (start >= file_.size() || slice_bytes_ > file_.size() - start) {
      co_return std::unexpected(Error{
          .kind = ErrorKind::Corrupt,
          .operation = "read a table of",
          .node = file_.facts().name,
          .offset = start,
          .detail = fmt::format("the image has only {} bytes: it was cut off, or is damaged", file_.size())});
    }
    loading_.try_emplace(number);
    std::unique_ptr<std::byte[], Free> memory(new (std::align_val_t{kLargestSlice}) std::byte[slice_bytes_]);
    const iovec part{memory.get(), slice_bytes_};
    auto read = co_await file_.read(start, Buffers(std::span(&part, 1)));
    // Who waits looks again: after an error each asks the file itself.
    for (const auto waiter : loading_[number]) file_.reactor().schedule(waiter);
    loading_.erase(number);
    if (!read) co_return std::unexpected(std::move(read.error()));
    // Made anew meanwhile: what was read is not what the table is now.
    if (std::byte* found = find(offset)) co_return found;
    Slice& slice = insert(start);
    std::memcpy(slice.bytes, memory.get(), slice_bytes_);
    touch(slice);
    co_return slice.bytes + (offset - start);
  }
}

std::byte* TableCache::create(uint64_t offset) {
  Slice& slice = insert(offset);
  std::memset(slice.bytes, 0, slice_bytes_);
  touch(slice);
  return slice.bytes + (offset & (slice_bytes_ - 1));
}

void TableCache::mark(uint64_t offset, uint64_t bytes) {
  Slice* slice = lookup(offset);
  if (!slice || bytes == 0) return;
  const uint64_t within = offset & (slice_bytes_ - 1);
  if (slice->changed == 0) {
    unlist(*slice);
    changed_.push_back(slice);
  }
  for (uint64_t sector = within / kSector; sector <= (within + bytes - 1) / kSector; ++sector) {
    const auto bit = static_cast<uint8_t>(1U << sector);
    if ((slice->changed & bit) == 0) ++changed_sectors_;
    slice->changed |= bit;
  }
}

void TableCache::forget(uint64_t offset, uint64_t bytes) {
  for (uint64_t at = offset; at < offset + bytes; at += slice_bytes_) {
    Slice* slice = lookup(at);
    if (slice && slice->listed) erase(*slice);
  }
}

void TableCache::drop_clean() {
  while (oldest_) erase(*oldest_);
}

void TableCache::freeze(const std::function<std::vector<Commit::Write>&(uint64_t offset)>& stage_of) {
  std::ranges::sort(changed_, {}, &Slice::offset);
  for (Slice* slice : changed_) {
    std::vector<Commit::Write>& stage = stage_of(slice->offset);
    for (uint64_t sector = 0; sector < slice_bytes_ / kSector; ++sector) {
      if ((slice->changed >> sector & 1) == 0) continue;
      const uint64_t at = slice->offset + sector * kSector;
      const std::byte* bytes = slice->bytes + sector * kSector;
      if (!stage.empty() && stage.back().offset + stage.back().bytes.size() == at) {
        stage.back().bytes.insert(stage.back().bytes.end(), bytes, bytes + kSector);
      } else {
        stage.push_back({.offset = at, .bytes = {bytes, bytes + kSector}});
      }
    }
    slice->frozen = std::exchange(slice->changed, uint8_t{0});
  }
  frozen_ = std::exchange(changed_, {});
  changed_sectors_ = 0;
}

void TableCache::published() {
  for (Slice* slice : frozen_) {
    slice->frozen = 0;
    if (slice->changed == 0) list(*slice);
  }
  frozen_.clear();
  shrink();
}

void TableCache::restore() {
  for (Slice* slice : frozen_) {
    if (slice->changed == 0) changed_.push_back(slice);
    const auto again = static_cast<uint8_t>(slice->frozen & ~slice->changed);
    changed_sectors_ += static_cast<uint64_t>(__builtin_popcount(again));
    slice->changed |= slice->frozen;
    slice->frozen = 0;
  }
  frozen_.clear();
}

}  // namespace spindle::qcow2
