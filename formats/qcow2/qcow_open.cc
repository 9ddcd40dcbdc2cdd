// Opening an image to run from it.
//
// Read-only opening takes what a careful reader can: what is wrong is told where it is met. For writing, the
// image must be sound as far as its header and first tables say: one that is marked as corrupt is refused,
// and one that is marked as dirty, whose counts are not to be trusted, is checked and mended first.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "block/big_endian.h"
#include "formats/qcow2/bitmap_directory.h"
#include "formats/qcow2/check.h"
#include "formats/qcow2/qcow_node.h"
#include "formats/qcow2/snapshot_table.h"

namespace spindle {
namespace {

constexpr uint64_t kRefcountCacheDefault = 1 << 20;
constexpr uint64_t kAutoclearAt = 88;

}  // namespace

Task<Result<std::shared_ptr<QcowNode>>> QcowNode::open(std::shared_ptr<Node> child, Options options,
                                                       OtherFiles* others) {
  std::shared_ptr<QcowNode> node(new QcowNode(std::move(child), options));
  auto loaded = co_await node->load(others);
  if (loaded) co_return node;
  // What was opened besides is ours; the first error is the one to tell.
  if (node->backing_) static_cast<void>(co_await node->backing_->close());
  if (node->data_) static_cast<void>(co_await node->data_->close());
  co_return std::unexpected(std::move(loaded.error()));
}

Task<Result<>> QcowNode::load(OtherFiles* others) {
  auto header = co_await qcow2::read_header(*child_);
  if (!header) co_return std::unexpected(std::move(header.error()));
  const bool read_only = child_->facts().read_only;
  if (!read_only && header->has(qcow2::kCorrupt)) {
    co_return std::unexpected(Error{
        .kind = ErrorKind::Corrupt,
        .operation = "open",
        .node = facts_.name,
        .detail = "it is marked as corrupt, so it may only be read: readonly=on opens it as it is, `spindle "
                  "img check -r all` mends it"});
  }
  if (!read_only && header->has(qcow2::kDirty)) {
    auto mended = co_await qcow2::check(*child_, Repair::All);
    if (!mended) co_return std::unexpected(std::move(mended.error()));
    header = co_await qcow2::read_header(*child_);
    if (!header) co_return std::unexpected(std::move(header.error()));
    if (header->has(qcow2::kDirty)) {
      co_return std::unexpected(Error{
          .kind = ErrorKind::Corrupt,
          .operation = "open",
          .node = facts_.name,
          .detail = "it was not closed in order and could not be mended; readonly=on opens it as it is"});
    }
  }
  header_ = std::move(*header);
  layout_ = header_.layout;
  disk_size_ = header_.disk_size;
  SPINDLE_CO_TRY(co_await l1_.read(*child_, header_.l1_offset, header_.l1_entries));
  SPINDLE_CO_TRY(co_await open_others(others));
  set_facts();
  const uint64_t tables = layout_.clusters(disk_size_) * layout_.l2_entry_bytes();
  const uint64_t l2_bytes = options_.l2_cache.value_or(std::min(tables, kL2CacheDefault));
  l2_.emplace(*child_, layout_.cluster_size(), l2_bytes);
  files_ = std::make_unique<qcow2::QcowFiles>(child_, data_);
  Commit::Owner& owner = *this;
  commit_ = std::make_unique<Commit>(*files_, owner, options_.commit);
  if (read_only) co_return Result<>{};
  co_return co_await prepare_for_writing();
}

Task<Result<>> QcowNode::open_others(OtherFiles* others) {
  const auto refuse = [this](const char* what) {
    return std::unexpected(
        Error{.kind = ErrorKind::NotSupported,
              .operation = "open",
              .node = facts_.name,
              .detail = fmt::format("it has {}, and other files were not allowed to be opened", what)});
  };
  if (header_.has(qcow2::kExternalData)) {
    if (!others) co_return refuse("an external data file");
    OtherFile file{.name = header_.text_of(qcow2::ExtensionType::DataFile).value_or(""), .format = "raw"};
    auto opened = co_await others->open_data_file(std::move(file));
    if (!opened) co_return std::unexpected(std::move(opened.error()));
    data_ = std::move(*opened);
  }
  if (header_.backing && !header_.backing->empty()) {
    if (!others) co_return refuse("a backing file");
    OtherFile file{.name = *header_.backing, .format = header_.text_of(qcow2::ExtensionType::BackingFormat)};
    auto opened = co_await others->open_backing(std::move(file));
    if (!opened) co_return std::unexpected(std::move(opened.error()));
    backing_ = std::move(*opened);
  }
  co_return Result<>{};
}

void QcowNode::set_facts() {
  facts_ = child_->facts();
  const NodeFacts below = data().facts();
  facts_.cluster_size = static_cast<uint32_t>(layout_.cluster_size());
  facts_.request_alignment = below.request_alignment;
  facts_.memory_alignment = below.memory_alignment;
  if (layout_.cluster_size() % facts_.request_alignment != 0) facts_.request_alignment = 1;
  facts_.supports_fua = false;
  facts_.supports_compressed = !data_;
  facts_.supports_zeroes = true;
  facts_.discard_granularity = facts_.cluster_size;
  facts_.discard_zeroes = header_.version >= 3 || !backing_;
  merge_ = options_.alloc_plan == AllocPlan::Merge ||
           (options_.alloc_plan == AllocPlan::Auto && !below.supports_zeroes);
}

// What must never be written over by a guest's data.
Task<Result<>> QcowNode::find_metadata() {
  const auto add = [this](uint64_t offset, uint64_t bytes) {
    metadata_.add(offset >> layout_.cluster_bits, layout_.clusters(bytes));
  };
  add(0, layout_.cluster_size());
  add(l1_.offset(), l1_.bytes());
  add(refcounts_->table().offset(), refcounts_->table().bytes());
  const auto tables = [&](const qcow2::MemoryTable& table) {
    for (const uint64_t entry : table.entries()) {
      if ((entry & qcow2::kOffsetMask) != 0) add(entry & qcow2::kOffsetMask, layout_.cluster_size());
    }
  };
  tables(l1_);
  tables(refcounts_->table());
  auto snapshots = co_await qcow2::read_snapshots(*child_, header_);
  if (!snapshots) co_return std::unexpected(std::move(snapshots.error()));
  if (snapshots->bytes != 0) add(header_.snapshots_offset, snapshots->bytes);
  for (const qcow2::Snapshot& snapshot : snapshots->snapshots) {
    SPINDLE_CO_TRY(qcow2::check_snapshot_l1(snapshot, layout_, child_->size(), facts_.name));
    add(snapshot.l1_offset, uint64_t{snapshot.l1_entries} * 8);
    qcow2::MemoryTable l1;
    SPINDLE_CO_TRY(co_await l1.read(*child_, snapshot.l1_offset, snapshot.l1_entries));
    tables(l1);
  }
  co_return Result<>{};
}

// Bits that somebody else will read of this image must not say more than is true once the guest writes:
// features that are not known here, and bitmaps, which are not kept while it runs.
Task<Result<>> QcowNode::mark_as_written_to() {
  if (const uint64_t known = header_.autoclear & qcow2::kKnownAutoclear; known != header_.autoclear) {
    header_.autoclear = known;
    std::array<std::byte, 8> bits;
    big_endian::put64(bits.data(), known);
    std::ranges::copy(bits, header_sector_.begin() + kAutoclearAt);
    const iovec part{bits.data(), bits.size()};
    SPINDLE_CO_TRY(co_await child_->write(kAutoclearAt, Buffers(std::span(&part, 1)), {}));
  }
  auto extension = qcow2::bitmaps_of(header_, facts_.name);
  if (!extension) co_return std::unexpected(std::move(extension.error()));
  if (!*extension) co_return Result<>{};
  auto bitmaps = co_await qcow2::read_bitmap_directory(*child_, header_);
  if (!bitmaps) co_return std::unexpected(std::move(bitmaps.error()));
  bool changed = false;
  for (qcow2::BitmapEntry& bitmap : *bitmaps) {
    metadata_.add(bitmap.table_offset >> layout_.cluster_bits,
                  layout_.clusters(uint64_t{bitmap.table_entries} * 8));
    if ((bitmap.flags & qcow2::kBitmapAuto) == 0 || (bitmap.flags & qcow2::kBitmapInUse) != 0) continue;
    bitmap.flags |= qcow2::kBitmapInUse;
    changed = true;
  }
  metadata_.add((*extension)->directory_offset >> layout_.cluster_bits,
                layout_.clusters((*extension)->directory_bytes));
  if (!changed) co_return Result<>{};
  // In place: only flags differ, and they may be set one without the other.
  auto bytes = qcow2::encode_bitmap_directory(*bitmaps, facts_.name);
  if (!bytes) co_return std::unexpected(std::move(bytes.error()));
  const iovec part{bytes->data(), bytes->size()};
  SPINDLE_CO_TRY(co_await child_->write((*extension)->directory_offset, Buffers(std::span(&part, 1)), {}));
  // Before the guest's first byte, or a power cut could leave bitmaps that miss it.
  co_return co_await child_->flush();
}

Task<Result<>> QcowNode::prepare_for_writing() {
  header_sector_.resize(qcow2::kSector);
  const iovec part{header_sector_.data(), header_sector_.size()};
  SPINDLE_CO_TRY(co_await child_->read(0, Buffers(std::span(&part, 1))));
  refcounts_.emplace(*child_, header_, options_.refcount_cache.value_or(kRefcountCacheDefault));
  SPINDLE_CO_TRY(co_await refcounts_->load(header_));
  SPINDLE_CO_TRY(co_await find_metadata());
  SPINDLE_CO_TRY(co_await mark_as_written_to());
  if (data_) {
    const uint64_t needed =
        header_.data_is_raw() ? disk_size_ : layout_.clusters(disk_size_) << layout_.cluster_bits;
    if (data_->size() < needed) SPINDLE_CO_TRY(co_await data_->resize(needed));
  }
  space_.emplace(*child_, layout_, *refcounts_, metadata_, requests_,
                 Space::Options{.step = options_.prealloc_ahead,
                                .ahead = commit_->policy() == CommitPolicy::Ordered,
                                .mutation = options_.mutation},
                 Space::Image{.flush = [this] { return commit_->flush(); },
                              .table_moved =
                                  [this](uint64_t offset, uint64_t clusters) {
                                    set_header64(qcow2::kRefcountTableAt, offset);
                                    set_header32(qcow2::kRefcountTableAt + 8,
                                                 static_cast<uint32_t>(clusters));
                                  },
                              .reused =
                                  [this](uint64_t cluster) {
                                    if (packing_at_ >> layout_.cluster_bits == cluster) packing_at_ = 0;
                                    decompressed_entry_ = 0;
                                    l2_->forget(cluster << layout_.cluster_bits, layout_.cluster_size());
                                  }});
  // An image may end within its last cluster; from here on it does not.
  if (const uint64_t size = child_->size(); layout_.in_cluster(size) != 0) {
    auto grown = co_await child_->resize(layout_.clusters(size) << layout_.cluster_bits);
    if (!grown && grown.error()->kind == ErrorKind::NoSpace) co_return grown;
  }
  co_return Result<>{};
}

}  // namespace spindle
