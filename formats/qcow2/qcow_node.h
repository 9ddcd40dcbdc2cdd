// qcow2: the running image. docs/qcow2.md is the users' page; the words are those of the specification.
//
// Tables are changed in memory (table_cache.h, memory_table.h) and written by the commit
// (formats/commit/commit.h), in this order:
//
//   stage 1   counts up; L2 tables that nothing in the file points to yet; a moved L1 or refcount table
//   barrier   only if a pointer stands on something that is not known to be durable
//   stage 2   L2 entries, L1 entries, entries of the refcount table, the header
//   barrier   the guest's flush
//   later     counts down, once no request can still use what was given up (space.h)
//
// How a write finds its place:
//
//   in place  the entry points to a cluster with one user: the data goes there, nothing else happens
//   new       the guest sees zeroes there and the new cluster reads as zeroes: the entry is set at once and
//   only
//             the guest's bytes are written, so several requests into one new cluster go on together
//   copied    the guest sees something else there (a backing file, a cluster that a snapshot shares,
//   compressed
//             data): what is around the guest's bytes is read and goes out with them in one write to the new
//             cluster, and the entry is set when that is done. Until the entry is durable the old one is, so
//             it stands on a barrier.
//
// Since space is counted and zeroed ahead, a guest's flush with allocations behind it usually costs one flush
// of the file. Durability: as Node's; with metadata-flush=ordered D8 holds as well. FUA is left to Disk.
//
// Files: qcow_open (opening), qcow_node (commit, flush, close), qcow_tables (finding and changing entries),
// qcow_read (read, map), qcow_write and qcow_place (writes), qcow_zero (zeroes, discard), qcow_compressed,
// qcow_resize.
//
// Threading: the node's reactor only.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "block/filters/turn.h"
#include "block/format_registry.h"
#include "block/node.h"
#include "formats/commit/commit.h"
#include "formats/qcow2/busy_clusters.h"
#include "formats/qcow2/cluster_set.h"
#include "formats/qcow2/copy_budget.h"
#include "formats/qcow2/header.h"
#include "formats/qcow2/in_flight.h"
#include "formats/qcow2/memory_table.h"
#include "formats/qcow2/node_mutation.h"
#include "formats/qcow2/qcow_files.h"
#include "formats/qcow2/refcounts.h"
#include "formats/qcow2/space.h"
#include "formats/qcow2/table_cache.h"

namespace spindle {

/// What to do about the parts of a new cluster that the guest did not write.
enum class AllocPlan : uint8_t {
  Ahead,  ///< nothing: the space was zeroed ahead
  Merge,  ///< zeroes go out with the data, in one write
  Auto,   ///< Merge where the host cannot zero a range without writing it
};

class QcowNode final : public Node, private Commit::Owner {
 public:
  struct Options {
    Commit::Options commit = {};
    uint64_t prealloc_ahead = 64 << 20;  ///< bytes of the file that are made ready ahead
    AllocPlan alloc_plan = AllocPlan::Ahead;
    std::optional<uint64_t> l2_cache = {};  ///< bytes; else what covers the disk, up to kL2CacheDefault
    std::optional<uint64_t> refcount_cache = {};
    qcow2::NodeMutation mutation = qcow2::NodeMutation::None;
  };
  static constexpr uint64_t kL2CacheDefault = 32 << 20;

  /// On an error the caller closes the child. ReadOnly, Corrupt, NotSupported say what to do.
  static Task<Result<std::shared_ptr<QcowNode>>> open(std::shared_ptr<Node> child, Options options,
                                                      OtherFiles* others);

  const NodeFacts& facts() const override { return facts_; }
  uint64_t size() const override { return disk_size_; }
  Task<Result<>> read(uint64_t offset, Buffers buffers) override;
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override;
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override;
  /// Whole clusters only. They read as zeroes afterwards; in an image of version 2 with a backing file they
  /// cannot, and stay as they are.
  Task<Result<>> discard(uint64_t offset, uint64_t length) override;
  Task<Result<>> flush() override;
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override;
  /// No other operation may be in flight (Disk::resize waits for them). Durable when it returns.
  Task<Result<>> resize(uint64_t size) override;
  Task<Result<>> close() override;
  void abandon() override;
  Node* child() const override { return child_.get(); }
  Node* backing() const override { return backing_.get(); }

  const qcow2::Header& header() const { return header_; }
  const Commit& commit() const { return *commit_; }

 private:
  using Kind = qcow2::Kind;
  using L2Entry = qcow2::L2Entry;
  using Space = qcow2::Space;

  /// [offset, offset + length) of the disk, of one kind, and in one piece of the file if it lies there.
  struct Run {
    Kind kind = Kind::Unallocated;
    uint64_t length = 0;
    uint64_t host = 0;  // of the first byte; Data and ZeroAllocated
    bool copied = false;
    L2Entry entry = {};  // of the first cluster
  };

  QcowNode(std::shared_ptr<Node> child, Options options);

  // qcow_open.cc
  Task<Result<>> load(OtherFiles* others);
  Task<Result<>> open_others(OtherFiles* others);
  Task<Result<>> prepare_for_writing();
  Task<Result<>> find_metadata();
  Task<Result<>> mark_as_written_to();
  void set_facts();

  // qcow_node.cc
  Result<> check_modification(const char* operation, uint64_t offset, uint64_t length) const;
  std::unexpected<BoxedError> damaged(const char* operation, uint64_t offset, std::string detail) const;
  /// The image contradicts itself where it was to be changed: it is marked as corrupt, and nothing is written
  /// to it any more.
  Task<Result<>> give_up(Error error);
  void set_header64(uint64_t at, uint64_t value);
  void set_header32(uint64_t at, uint32_t value);
  Task<Result<>> tidy();

  // qcow_tables.cc
  uint64_t guest_cluster(uint64_t offset) const { return offset >> layout_.cluster_bits; }
  uint64_t l1_index(uint64_t offset) const { return offset >> (layout_.cluster_bits + layout_.l2_bits()); }
  uint64_t l2_index(uint64_t offset) const {
    return offset >> layout_.cluster_bits & (layout_.l2_entries() - 1);
  }
  /// Where in the file the entry of the cluster at `offset` lies; its L1 entry is not 0.
  uint64_t entry_offset(uint64_t offset) const {
    return (l1_[l1_index(offset)] & qcow2::kOffsetMask) + l2_index(offset) * layout_.l2_entry_bytes();
  }
  /// Clusters from that at `offset` on whose entries lie in the same slice.
  uint64_t clusters_in_slice(uint64_t offset) const {
    const uint64_t per_slice = l2_->slice_bytes() / layout_.l2_entry_bytes();
    return per_slice - l2_index(offset) % per_slice;
  }
  /// The entry's bytes, the rest of the slice behind them: null if there is no table. Good until a wait.
  Task<Result<std::byte*>> entries(uint64_t offset);
  std::byte* entries_at_hand(uint64_t offset);
  Result<> check_l1(uint64_t offset) const;
  L2Entry entry_in(const std::byte* entries, uint64_t i) const;
  void set_entry(uint64_t offset, std::byte* entries, uint64_t i, L2Entry entry);
  /// The same with a table that may be changed, which is made if there is none.
  Task<Result<std::byte*>> entries_to_change(uint64_t offset);
  Task<Result<>> make_table(uint64_t offset);
  Run run_in(const std::byte* entries, uint64_t offset, uint64_t length) const;
  /// What lies at `offset`. Corrupt if its entry cannot be.
  Result<> check_run(const char* operation, uint64_t offset, const Run& run) const;
  Task<Result<Run>> run_at(const char* operation, uint64_t offset, uint64_t length);
  void free_entry(L2Entry entry);
  bool in_other_file() const { return data_ != nullptr; }
  Node& data() const { return data_ ? *data_ : *child_; }

  // qcow_read.cc
  Task<Result<>> read_runs(uint64_t offset, Buffers buffers);
  Task<Result<>> read_run(uint64_t offset, const Run& run, Buffers buffers, uint64_t done);
  Task<Result<>> read_in_place(uint64_t host, Buffers buffers);
  Task<Result<>> read_backing(uint64_t offset, Buffers buffers);
  Task<Result<>> read_flat(uint64_t offset, std::byte* bytes, uint64_t length);

  // qcow_write.cc
  Task<Result<>> write_runs(uint64_t offset, Buffers buffers);
  Task<Result<>> write_in_place(uint64_t host, Buffers buffers);
  Result<> check_target(uint64_t host, uint64_t length) const;

  // qcow_place.cc
  /// Bytes of the guest's that went into new places, from `offset` on and within `run`; 0 if the caller has
  /// to look again.
  Task<Result<uint64_t>> place(uint64_t offset, const Run& run, Buffers buffers, uint64_t done);
  Task<Result<uint64_t>> place_new(uint64_t offset, uint64_t clusters, uint64_t length, Buffers buffers,
                                   uint64_t done);
  Task<Result<uint64_t>> place_copy(uint64_t offset, uint64_t clusters, uint64_t length, Buffers buffers,
                                    uint64_t done);
  Task<Result<>> write_merged(uint64_t begin, uint64_t end, uint64_t offset, uint64_t length, uint64_t host,
                              bool space_is_zero, Buffers buffers, uint64_t done);
  Task<Result<>> make_room();
  Task<Result<>> set_copied(uint64_t offset, uint64_t length, uint64_t clusters, uint64_t host);
  bool reads_as_zeroes(Kind kind, uint64_t offset) const;
  bool copies_whole(const L2Entry& entry) const;
  L2Entry with_data(const L2Entry& old, uint64_t place, uint64_t cluster, uint64_t offset,
                    uint64_t length) const;

  // qcow_zero.cc
  Task<Result<>> zero_part(uint64_t offset, uint64_t length, ZeroFlags flags);
  Task<Result<>> zero_clusters(uint64_t offset, uint64_t length, ZeroFlags flags, bool discard);
  L2Entry zeroed(const L2Entry& entry, bool unmap, bool discard) const;
  Task<Result<>> write_zero_buffers(uint64_t offset, uint64_t length);
  Task<Result<>> zero_data_file(uint64_t offset, uint64_t length, ZeroFlags flags, bool discard);

  // qcow_compressed.cc
  Task<Result<>> read_compressed(uint64_t offset, L2Entry entry, Buffers buffers);
  Task<Result<>> write_compressed(uint64_t offset, Buffers buffers);
  Task<Result<bool>> store_compressed(uint64_t offset, const std::byte* stream, uint64_t bytes);
  Task<Result<uint64_t>> room_for(uint64_t bytes);

  // qcow_resize.cc
  Task<Result<>> grow(uint64_t size);
  Task<Result<>> shrink(uint64_t size);
  Task<Result<>> clear_beyond(uint64_t from, uint64_t to);
  Task<Result<>> move_l1(uint64_t entries);

  // Commit::Owner, qcow_node.cc
  Commit::Batch freeze() override;
  void published() override;
  void restore() override;
  uint64_t waiting_bytes() const override;

  std::shared_ptr<Node> child_;
  std::shared_ptr<Node> data_;     // the external data file, or null
  std::shared_ptr<Node> backing_;  // or null
  std::unique_ptr<qcow2::QcowFiles> files_;
  Options options_;
  NodeFacts facts_;
  qcow2::Header header_;
  qcow2::Layout layout_;
  uint64_t disk_size_ = 0;
  bool merge_ = false;

  qcow2::MemoryTable l1_;
  std::optional<qcow2::TableCache> l2_;
  std::optional<qcow2::Refcounts> refcounts_;
  qcow2::ClusterSet metadata_;
  qcow2::InFlight requests_;
  qcow2::BusyClusters busy_;
  qcow2::CopyBudget copying_;
  std::optional<Space> space_;  // none if read-only
  std::unique_ptr<Commit> commit_;
  Turns table_turns_;
  Turns packing_turns_;

  /// The L2 table that is being copied, and those that nothing in the file points to yet, by their offsets.
  uint64_t building_ = 0;
  std::unordered_set<uint64_t> unlinked_, frozen_unlinked_;
  std::vector<std::byte> header_sector_;
  bool header_changed_ = false, frozen_header_ = false;
  bool needs_barrier_ = false, frozen_barrier_ = false;
  bool size_with_counts_ = false;  // a mutation's
  bool given_up_ = false;          // the image was found to be damaged
  bool broken_ = false;            // a resize failed half way: only reopening tells what the image is

  /// Where the next compressed stream goes: the rest of the cluster that the last one ended in.
  uint64_t packing_at_ = 0;  // 0: none
  /// The cluster that was decompressed last, by its entry.
  uint64_t decompressed_entry_ = 0;
  std::vector<std::byte> decompressed_;
};

}  // namespace spindle
