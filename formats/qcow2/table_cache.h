// TableCache: slices of the tables that a qcow2 image keeps in its file, L2 tables and refcount blocks, as
// far as they are in memory.
//
// A slice is a part of a table of at most 4 KiB, whatever the cluster size: what is read and kept follows
// from what is used, not from how large the clusters are. What changed is known by the sector, and that is
// what a commit writes: the format's entries never cross one, so a torn write of several sectors leaves each
// entry old or new.
//
// Clean slices are dropped, the longest unused first, when there are more than the bound. Changed ones stay
// until they are written, so the bound holds only together with that of the commit
// (Commit::Options::max_waiting).
//
// Pointers into a slice are good until the caller waits for anything.
//
// Threading: the node's reactor only.
#pragma once

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <unordered_map>
#include <vector>

#include "block/node.h"
#include "formats/commit/commit.h"

namespace spindle::qcow2 {

class TableCache {
 public:
  static constexpr uint64_t kLargestSlice = 4096;

  /// `cluster_size`: a power of two, from 512. `max_bytes`: of clean slices; at least one is kept.
  TableCache(Node& file, uint64_t cluster_size, uint64_t max_bytes);

  uint64_t slice_bytes() const { return slice_bytes_; }
  /// The byte at `offset` of the file, with the rest of its slice behind it; null if it is not in memory.
  std::byte* find(uint64_t offset);
  /// The same, read from the file if it must be. Errors: those of the file; Corrupt if it ends before.
  Task<Result<std::byte*>> get(uint64_t offset);
  /// A new slice of zeroes at `offset`, whatever the file holds there. Not changed: zeroes need not be
  /// written to where zeroes are.
  std::byte* create(uint64_t offset);
  /// [offset, offset + bytes) of a slice that is in memory has changed. Must not go beyond the slice.
  void mark(uint64_t offset, uint64_t bytes);
  /// Forgets the clean slices in [offset, offset + bytes): a table that was given up.
  void forget(uint64_t offset, uint64_t bytes);
  /// Drops all that is clean, for another look at the file.
  void drop_clean();

  /// Copies of all changed sectors, neighbours in one write. They count as written from here to published()
  /// or restore().
  void freeze(const std::function<std::vector<Commit::Write>&(uint64_t offset)>& stage_of);
  void published();
  void restore();

  uint64_t changed_bytes() const { return changed_sectors_ * 512; }
  uint64_t bytes() const { return slices_.size() * slice_bytes_; }

 private:
  struct Slice {
    uint64_t offset = 0;
    std::byte* bytes = nullptr;
    uint8_t changed = 0;  // a bit for each sector
    uint8_t frozen = 0;
    Slice* older = nullptr;  // among the clean ones
    Slice* newer = nullptr;
    bool listed = false;
  };
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{kLargestSlice}); }
  };

  Slice* lookup(uint64_t offset);
  Slice& insert(uint64_t offset);
  void erase(Slice& slice);
  void list(Slice& slice);
  void unlist(Slice& slice);
  void touch(Slice& slice);
  void shrink();

  Node& file_;
  const uint64_t slice_bytes_;
  const uint64_t most_clean_;
  struct Entry {
    Slice slice;
    std::unique_ptr<std::byte[], Free> memory;
  };
  std::unordered_map<uint64_t, Entry> slices_;  // by slice number
  Slice* last_ = nullptr;                       // the one used last
  Slice* oldest_ = nullptr;
  Slice* newest_ = nullptr;
  uint64_t clean_ = 0;
  uint64_t changed_sectors_ = 0;
  std::vector<Slice*> changed_;
  std::vector<Slice*> frozen_;
  std::unordered_map<uint64_t, std::vector<std::coroutine_handle<>>> loading_;  // who waits for a read
};

}  // namespace spindle::qcow2
