// vdi: dynamic and static images of VirtualBox and QEMU, version 1.1. docs/vdi.md is the users' page.
//
// The map is in memory (block_map.h); which places are free is in memory (space.h); what changed is written
// by the commit (formats/commit/commit.h), in this order:
//
//   stage 1   the header's allocated count, always above every entry there is or will be, since other
//   programs put
//             their next block at it
//   barrier   only if an entry points to space that was made since the last one
//   stage 2   map entries
//
// A write into a block that has no place yet takes a place that reads as zeroes, writes what it was given,
// not a whole block, and leaves the entry to the next commit. So the data needs no barrier before its
// pointer: until it is durable, the place reads as zeroes, which is what the block held. Since space is made
// ahead, a guest's flush with allocations behind it usually costs one flush of the file.
//
// A discarded or zeroed block keeps its place, and its range is punched. Blocks are only ever moved by
// whole-image operations (compact.h, resize.h).
//
// Durability: as Node's; with metadata-flush=ordered D8 holds as well. FUA is left to Disk: a write's entry
// may be new.
//
// An image in which two entries name one place, or an entry names none that the file has, is opened read-only
// only; `spindle img check -r all` mends it.
//
// Threading: the node's reactor only.
#pragma once

#include <bit>
#include <memory>

#include "block/node.h"
#include "formats/commit/commit.h"
#include "formats/vdi/block_map.h"
#include "formats/vdi/header.h"
#include "formats/vdi/mutation.h"
#include "formats/vdi/space.h"

namespace spindle {

class VdiNode final : public Node, private Commit::Owner {
 public:
  struct Options {
    Commit::Options commit = {};
    uint64_t prealloc_ahead = 64 << 20;  ///< bytes of the file that are made ready ahead
    vdi::Mutation mutation = vdi::Mutation::None;
  };

  /// On an error the caller closes the child. Corrupt: see above.
  static Task<Result<std::shared_ptr<VdiNode>>> open(std::shared_ptr<Node> child, Options options);

  const NodeFacts& facts() const override { return facts_; }
  uint64_t size() const override { return header_.disk_size; }
  Task<Result<>> read(uint64_t offset, Buffers buffers) override;
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override;
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override;
  Task<Result<>> discard(uint64_t offset, uint64_t length) override;
  Task<Result<>> flush() override;
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override;
  /// Moves blocks if the map needs their space, so no other operation may be in flight (Disk::resize waits
  /// for them). Durable when it returns. After an error the disk has the size that the image has; after
  /// FlushFailed it must be opened again (D6).
  Task<Result<>> resize(uint64_t size) override;
  Task<Result<>> close() override;
  void abandon() override;
  Node* child() const override { return child_.get(); }

  const vdi::Header& header() const { return header_; }
  const Commit& commit() const { return *commit_; }

 private:
  /// [offset, offset + length) of the disk, in one piece of the file, or in none.
  struct Run {
    uint64_t length = 0;
    std::optional<uint64_t> file_offset;
  };

  VdiNode(std::shared_ptr<Node> child, Options options);
  Task<Result<>> load();
  Result<> check_modification(const char* operation, uint64_t offset, uint64_t length) const;
  uint32_t block_of(uint64_t offset) const { return static_cast<uint32_t>(offset >> shift_); }
  uint64_t offset_in_file(uint64_t offset) const {
    return header_.place_offset((*map_)[block_of(offset)]) + (offset & (header_.block_size - 1));
  }
  bool one_block(uint64_t offset, uint64_t length) const {
    return length != 0 && block_of(offset) == block_of(offset + length - 1);
  }
  Run run_at(uint64_t offset, uint64_t length) const;
  Task<Result<>> read_runs(uint64_t offset, Buffers buffers);
  Task<Result<>> write_blocks(uint64_t offset, Buffers buffers);
  Task<Result<>> place_blocks(uint32_t first, uint32_t last);
  template <typename Operation>
  Task<Result<>> for_each_run(uint64_t offset, uint64_t length, Operation operation);
  bool mark(uint32_t block);
  Task<Result<>> tidy();

  // Commit::Owner
  Commit::Batch freeze() override;
  void published() override;
  void restore() override;
  uint64_t waiting_bytes() const override { return map_->changed_bytes(); }

  std::shared_ptr<Node> child_;
  Options options_;
  NodeFacts facts_;
  vdi::Header header_;
  unsigned shift_ = 0;
  std::optional<vdi::BlockMap> map_;
  std::optional<vdi::Space> space_;  // none if read-only
  std::unique_ptr<Commit> commit_;
  bool points_to_unready_ = false;
  bool frozen_points_to_unready_ = false;
  uint32_t frozen_count_ = 0;  // of the header in the file, before the commit that runs
  bool cut_ = false;           // read-only, and entries point beyond the file: there it reads as zeroes
  bool broken_ = false;        // a resize failed half way: only reopening tells what the image is
};

}  // namespace spindle
