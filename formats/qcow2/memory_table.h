// MemoryTable: a table of the image that is kept in memory whole, the L1 table or the refcount table.
//
// A change of entries is a pointer: it is written by the sector, in stage 2 of a commit. A table that has
// moved is written whole in stage 1, and whoever points to it (the header) in stage 2.
//
// Threading: the node's reactor only.
#pragma once

#include <cstdint>
#include <vector>

#include "block/node.h"
#include "formats/commit/commit.h"
#include "formats/qcow2/layout.h"

namespace spindle::qcow2 {

class MemoryTable {
 public:
  /// Reads `entries` entries at `offset`; the caller has held both against the file's size and a bound.
  Task<Result<>> read(Node& file, uint64_t offset, uint64_t entries);

  uint64_t offset() const { return offset_; }
  uint64_t size() const { return entries_.size(); }
  uint64_t bytes() const { return entries_.size() * 8; }
  uint64_t operator[](uint64_t index) const { return entries_[index]; }
  const std::vector<uint64_t>& entries() const { return entries_; }
  void set(uint64_t index, uint64_t entry);
  /// It lies at `offset` now, with `entries` entries, new ones 0. What lies behind its end is not used.
  void move(uint64_t offset, uint64_t entries);
  /// Entries from `entries` on are gone; the place stays.
  void cut(uint64_t entries);

  bool changed() const { return moved_ || changed_sectors_ != 0; }
  uint64_t changed_bytes() const { return moved_ ? bytes() : changed_sectors_ * kSector; }
  void freeze(Commit::Batch& batch);
  void published();
  void restore();

 private:
  std::vector<std::byte> encode(uint64_t first, uint64_t count) const;

  uint64_t offset_ = 0;
  std::vector<uint64_t> entries_;
  std::vector<bool> changed_;  // by the sector
  uint64_t changed_sectors_ = 0;
  bool moved_ = false;
  std::vector<uint64_t> frozen_;
  bool frozen_moved_ = false;
};

}  // namespace spindle::qcow2
