// The refcount table of an image that no guest uses, and the blocks it points to, as they are in the file.
//
// What an entry points to is not believed: usable() says whether a block can be read. Memory: the table, at
// most kLargestRefcountTableBytes, and a few blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "block/node.h"
#include "formats/qcow2/header.h"

namespace spindle::qcow2 {

class RefcountTable {
 public:
  /// A table that lies nowhere is empty(), and all counts are 0.
  static Task<Result<RefcountTable>> load(Node& file, const Header& header);

  bool empty() const { return entries_.empty(); }
  const std::vector<uint64_t>& entries() const { return entries_; }
  /// Whether entry `block` points to a cluster of the file.
  bool usable(uint64_t block) const;
  uint64_t block_of(uint64_t cluster) const { return cluster >> shift_; }
  uint64_t first_cluster(uint64_t block) const { return block << shift_; }

  /// The block's bytes, valid until the next call; of one that is not usable, zeroes.
  Task<Result<std::vector<std::byte>*>> block(uint64_t block);
  /// Writes the block back, which block() gave last and the caller changed.
  Task<Result<>> write(uint64_t block);
  Task<Result<uint64_t>> count(uint64_t cluster);

 private:
  RefcountTable(Node& file, const Layout& layout)
      : file_(&file), layout_(layout), shift_(layout.cluster_bits + 3 - layout.refcount_order) {}

  struct Cached {
    uint64_t block = 0;
    uint64_t used = 0;
    std::vector<std::byte> bytes;
  };
  static constexpr std::size_t kCached = 4;

  Node* file_;
  Layout layout_;
  unsigned shift_;
  std::vector<uint64_t> entries_;
  std::vector<Cached> cache_;
  uint64_t clock_ = 0;
};

}  // namespace spindle::qcow2
