// Refcounts: how many users each cluster of the image's file has, as far as a running image changes it.
//
// Changes are made in memory and written by the commit: counts in stage 1, entries of the refcount table in
// stage 2. New blocks are made by Space, which owns growth.
//
// Threading: the node's reactor only.
#pragma once

#include <cstdint>

#include "block/node.h"
#include "formats/qcow2/header.h"
#include "formats/qcow2/memory_table.h"
#include "formats/qcow2/table_cache.h"

namespace spindle::qcow2 {

class Refcounts {
 public:
  Refcounts(Node& file, const Header& header, uint64_t cache_bytes);
  /// Reads the refcount table. Errors: those of the file.
  Task<Result<>> load(const Header& header);

  MemoryTable& table() { return table_; }
  const MemoryTable& table() const { return table_; }
  TableCache& cache() { return cache_; }
  const TableCache& cache() const { return cache_; }
  uint64_t per_block() const { return layout_.refcount_block_entries(); }
  /// Whether there is a block that counts `cluster`; if not, it is not in use.
  bool has_block(uint64_t cluster) const {
    return cluster / per_block() < table_.size() && table_[cluster / per_block()] != 0;
  }

  /// Counts that lie together in memory. `bytes` is good until the caller waits.
  struct Run {
    std::byte* bytes = nullptr;
    uint64_t index = 0;  ///< of the cluster asked for, within `bytes`
    uint64_t count = 0;  ///< from it to the end of the slice
  };
  /// The counts from `cluster` on; has_block() must hold. Corrupt if its block lies where none can.
  Task<Result<Run>> at(uint64_t cluster);
  uint64_t get(const Run& run, uint64_t i) const {
    return refcount_at(run.bytes, layout_.refcount_order, run.index + i);
  }
  /// Sets count `i` of `run`, which is that of `cluster + i`.
  void set(const Run& run, uint64_t cluster, uint64_t i, uint64_t count);

  /// [first, first + clusters) have one user each from now on; all have blocks, and none had a user.
  Task<Result<>> set_used(uint64_t first, uint64_t clusters);
  /// One user more. False if the count cannot be so high.
  Task<Result<bool>> raise(uint64_t cluster);

 private:
  uint64_t bytes_at(uint64_t cluster) const;

  Node& file_;
  Layout layout_;
  MemoryTable table_;
  TableCache cache_;
};

}  // namespace spindle::qcow2
