// The commit of a running image, and its end.
#include "formats/qcow2/qcow_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "block/big_endian.h"

namespace spindle {

using qcow2::NodeMutation;

QcowNode::QcowNode(std::shared_ptr<Node> child, Options options)
    : Node(child->reactor()),
      child_(std::move(child)),
      options_(options),
      facts_(child_->facts()),
      busy_(child_->reactor()),
      copying_(child_->reactor()),
      table_turns_(child_->reactor()),
      packing_turns_(child_->reactor()) {}

Result<> QcowNode::check_modification(const char* operation, uint64_t offset, uint64_t length) const {
  SPINDLE_TRY(check_range(operation, offset, length));
  if (facts_.read_only) return std::unexpected(Error::from_errno(EROFS, operation, facts_.name, offset));
  if (!commit_->abandoned() && !broken_) [[likely]]
    return {};
  Error error = Error::from_errno(EIO, operation, facts_.name, offset);
  error.kind = ErrorKind::FlushFailed;
  error.detail = given_up_ ? "the image was found to be damaged; `spindle img check -r all` mends it"
                 : broken_ ? "a change of its size failed half way; open the image again"
                           : "an earlier flush failed; open the image again";
  return std::unexpected(std::move(error));
}

std::unexpected<BoxedError> QcowNode::damaged(const char* operation, uint64_t offset,
                                              std::string detail) const {
  return std::unexpected<BoxedError>(Error{.kind = ErrorKind::Corrupt,
                                           .number = EIO,
                                           .operation = operation,
                                           .node = facts_.name,
                                           .offset = offset,
                                           .detail = std::move(detail) + "; `spindle img check` says more"});
}

Task<Result<>> QcowNode::give_up(Error error) {
  if (given_up_) co_return std::unexpected(std::move(error));
  given_up_ = true;
  commit_->abandon();
  if (header_.version >= 3) {
    // These bytes alone: what else of the header has changed in memory has lost its ground.
    std::array<std::byte, 8> bits;
    header_.incompatible |= qcow2::kCorrupt;
    big_endian::put64(bits.data(), header_.incompatible);
    const iovec part{bits.data(), bits.size()};
    // The request fails either way, with the error that matters.
    auto marked = co_await child_->write(qcow2::kIncompatibleAt, Buffers(std::span(&part, 1)), {});
    if (marked) marked = co_await child_->flush();
    if (!marked) error.detail += "; it could not be marked as corrupt: " + marked.error()->message();
  }
  co_return std::unexpected(std::move(error));
}

void QcowNode::set_header64(uint64_t at, uint64_t value) {
  big_endian::put64(header_sector_.data() + at, value);
  header_changed_ = true;
}

void QcowNode::set_header32(uint64_t at, uint32_t value) {
  big_endian::put32(header_sector_.data() + at, value);
  header_changed_ = true;
}

uint64_t QcowNode::waiting_bytes() const {
  return l2_->changed_bytes() + refcounts_->cache().changed_bytes() + l1_.changed_bytes() +
         refcounts_->table().changed_bytes() + space_->waiting_bytes();
}

Commit::Batch QcowNode::freeze() {
  Commit::Batch batch;
  std::vector<Commit::Write>& counts =
      options_.mutation == NodeMutation::CountsWithPointers ? batch.pointers : batch.before;
  refcounts_->cache().freeze([&counts](uint64_t) -> std::vector<Commit::Write>& { return counts; });
  l2_->freeze([this, &batch](uint64_t offset) -> std::vector<Commit::Write>& {
    const uint64_t table = layout_.cluster_start(offset);
    return table == building_ || unlinked_.contains(table) ? batch.before : batch.pointers;
  });
  bool barrier = needs_barrier_;
  l1_.freeze(batch);
  if (!space_->linking()) {
    barrier |= refcounts_->table().changed();
    refcounts_->table().freeze(batch);
  }
  frozen_header_ = std::exchange(header_changed_, false);
  if (frozen_header_) {
    const bool early = options_.mutation == NodeMutation::TableSwitchedEarly || size_with_counts_;
    (early ? batch.before : batch.pointers).push_back({.offset = 0, .bytes = header_sector_});
    barrier = true;
  }
  batch.barrier = barrier && options_.mutation != NodeMutation::CountsWithPointers;
  frozen_barrier_ = std::exchange(needs_barrier_, false);
  frozen_unlinked_ = std::exchange(unlinked_, {});
  space_->freeze();
  return batch;
}

void QcowNode::published() {
  refcounts_->cache().published();
  refcounts_->table().published();
  l2_->published();
  l1_.published();
  frozen_unlinked_.clear();
  frozen_header_ = frozen_barrier_ = false;
  space_->published();
}

void QcowNode::restore() {
  refcounts_->cache().restore();
  refcounts_->table().restore();
  l2_->restore();
  l1_.restore();
  unlinked_.merge(frozen_unlinked_);
  frozen_unlinked_.clear();
  header_changed_ |= std::exchange(frozen_header_, false);
  needs_barrier_ |= std::exchange(frozen_barrier_, false);
  space_->restore();
}

Task<Result<>> QcowNode::flush() {
  if (facts_.read_only) co_return Result<>{};
  if (broken_ || commit_->abandoned()) co_return check_modification("flush", 0, 0);
  if (space_->has_to_release()) {
    auto released = co_await space_->release();
    if (!released) {
      released.error()->can_flush_again = true;
      co_return released;
    }
  }
  co_return co_await commit_->flush();
}

void QcowNode::abandon() {
  if (commit_) commit_->abandon();
  child_->abandon();
  if (data_) data_->abandon();
}

// The counts and the file's length ran ahead; at the end they are what they would be in an image of
// anybody's. Cutting the file needs no order: nothing durable points behind it.
Task<Result<>> QcowNode::tidy() {
  if (waiting_bytes() != 0 || header_changed_) SPINDLE_CO_TRY(co_await commit_->flush());
  SPINDLE_CO_TRY(co_await space_->release());
  if (!space_->touched()) co_return Result<>{};
  auto end = co_await space_->put_down();
  if (!end) co_return std::unexpected(std::move(end.error()));
  if (waiting_bytes() != 0) SPINDLE_CO_TRY(co_await commit_->flush());
  if (options_.mutation == NodeMutation::CloseCutsTooMuch) *end -= layout_.cluster_size();
  if (space_->fixed() || *end >= child_->size()) co_return Result<>{};
  co_return co_await child_->resize(*end);
}

Task<Result<>> QcowNode::close() {
  Result<> result;
  if (commit_) co_await commit_->close();
  if (commit_ && !facts_.read_only && !broken_ && !commit_->abandoned()) result = co_await tidy();
  if (backing_) {
    auto closed = co_await backing_->close();
    if (result && !closed) result = closed;
  }
  if (data_) {
    auto closed = co_await data_->close();
    if (result && !closed) result = closed;
  }
  auto closed = co_await child_->close();
  if (!result) co_return result;
  co_return closed;
}

}  // namespace spindle
