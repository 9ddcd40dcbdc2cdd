#include "formats/qcow2/memory_table.h"

#include <algorithm>
#include <utility>

#include "block/big_endian.h"

namespace spindle::qcow2 {
namespace {

constexpr uint64_t kPerSector = kSector / 8;

}  // namespace

Task<Result<>> MemoryTable::read(Node& file, uint64_t offset, uint64_t entries) {
  std::vector<std::byte> bytes(entries * 8);
  if (entries != 0) {
    const iovec part{bytes.data(), bytes.size()};
    auto result = co_await file.read(offset, Buffers(std::span(&part, 1)));
    if (!result) co_return result;
  }
  entries_.resize(entries);
  for (uint64_t i = 0; i < entries; ++i) entries_[i] = big_endian::get64(bytes.data() + i * 8);
  offset_ = offset;
  changed_.assign((entries + kPerSector - 1) / kPerSector, false);
  changed_sectors_ = 0;
  moved_ = false;
  co_return Result<>{};
}

void MemoryTable::set(uint64_t index, uint64_t entry) {
  entries_[index] = entry;
  if (moved_ || changed_[index / kPerSector]) return;
  changed_[index / kPerSector] = true;
  ++changed_sectors_;
}

void MemoryTable::move(uint64_t offset, uint64_t entries) {
  offset_ = offset;
  entries_.resize(entries);
  changed_.assign((entries + kPerSector - 1) / kPerSector, false);
  changed_sectors_ = 0;
  moved_ = true;
}

void MemoryTable::cut(uint64_t entries) {
  if (entries >= entries_.size()) return;
  entries_.resize(entries);
  changed_.resize((entries + kPerSector - 1) / kPerSector);
  changed_sectors_ = static_cast<uint64_t>(std::ranges::count(changed_, true));
}

std::vector<std::byte> MemoryTable::encode(uint64_t first, uint64_t count) const {
  std::vector<std::byte> bytes(count * 8);
  for (uint64_t i = 0; i < count && first + i < entries_.size(); ++i)
    big_endian::put64(bytes.data() + i * 8, entries_[first + i]);
  return bytes;
}

void MemoryTable::freeze(Commit::Batch& batch) {
  frozen_moved_ = std::exchange(moved_, false);
  frozen_.clear();
  if (frozen_moved_) {
    batch.before.push_back({.offset = offset_, .bytes = encode(0, entries_.size())});
    return;
  }
  if (changed_sectors_ == 0) return;
  for (uint64_t sector = 0; sector < changed_.size(); ++sector) {
    if (!changed_[sector]) continue;
    frozen_.push_back(sector);
    // Never beyond the table: what follows it in its last sector may be another's.
    const uint64_t first = sector * kPerSector;
    batch.pointers.push_back(
        {.offset = offset_ + sector * kSector,
         .bytes = encode(first, std::min<uint64_t>(kPerSector, entries_.size() - first))});
    changed_[sector] = false;
  }
  changed_sectors_ = 0;
}

void MemoryTable::published() {
  frozen_.clear();
  frozen_moved_ = false;
}

void MemoryTable::restore() {
  if (frozen_moved_) {
    move(offset_, entries_.size());
  } else if (!moved_) {
    for (const uint64_t sector : frozen_) {
      if (sector >= changed_.size() || changed_[sector]) continue;
      changed_[sector] = true;
      ++changed_sectors_;
    }
  }
  published();
}

}  // namespace spindle::qcow2
