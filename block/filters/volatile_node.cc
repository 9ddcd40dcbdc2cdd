#include "block/filters/volatile_node.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "block/protocols/bounce_pool.h"

namespace spindle {
namespace {

// Writes are cut into pieces of this size, so that overwriting a part of one copies little.
constexpr uint64_t kPieceBytes = 64 << 10;

// A piece whose middle is taken becomes two, and so does a discard that is held over it.
constexpr uint64_t kSplitCost = 2 * HeldMap::kPieceCost;

// What may be added by holding `length` bytes, and room for the one FUA write that may be under way to split
// what it finds when it ends.
uint64_t cost_of_write(uint64_t length) {
  return length + (length / kPieceBytes + 1) * HeldMap::kPieceCost + 2 * kSplitCost;
}

bool covers(const std::vector<HeldMap::Piece>& pieces, uint64_t begin, uint64_t end) {
  for (const auto& piece : pieces) {
    if (piece.offset > begin) return false;
    begin = piece.end();
  }
  return begin >= end;
}

}  // namespace

VolatileNode::VolatileNode(std::shared_ptr<Node> child, Options options)
    : Node(child->reactor()),
      child_(std::move(child)),
      options_(options),
      facts_(child_->facts()),
      size_(child_->size()),
      valid_(size_),
      turns_(reactor()) {
  facts_.memory_alignment = 1;
  facts_.supports_zeroes = true;
  facts_.discard_zeroes = false;
}

Result<> VolatileNode::check_modification(const char* operation, uint64_t offset, uint64_t length) const {
  SPINDLE_TRY(check_range(operation, offset, length));
  if (facts_.read_only) return std::unexpected(Error::from_errno(EROFS, operation, facts_.name, offset));
  return {};
}

Task<Result<>> VolatileNode::read(uint64_t offset, Buffers buffers) {
  SPINDLE_CO_TRY(check_range("read", offset, buffers.size));
  const uint64_t end = offset + buffers.size;
  // What is held is noted before the child is read: a flush that ends meanwhile lets go of it.
  const auto pieces = held_.overlapping(offset, end);
  const uint64_t from_child = std::min(end, std::max(valid_, offset)) - offset;
  if (from_child != 0 && !covers(pieces, offset, offset + from_child)) {
    std::vector<iovec> parts;
    Buffers below = buffers;
    if (from_child != buffers.size) {
      slice(buffers, 0, from_child, buffers.parts.size(), parts);
      below = Buffers(parts, from_child);
    }
    auto result = co_await child_->read(offset, below);
    if (!result) co_return result;
  }
  zero_in(buffers, from_child, buffers.size - from_child);
  for (const auto& piece : pieces) {
    if (piece.data) {
      copy_to(buffers, piece.offset - offset, piece.bytes(), piece.length);
    } else {
      zero_in(buffers, piece.offset - offset, piece.length);
    }
  }
  co_return Result<>{};
}

void VolatileNode::hold(uint64_t offset, const Buffers& buffers) {
  ++order_;
  discards_.cut(offset, offset + buffers.size, order_);
  for (uint64_t position = 0; position < buffers.size;) {
    const uint64_t length = std::min(kPieceBytes, buffers.size - position);
    auto data = std::make_shared<std::vector<std::byte>>(length);
    copy_from(buffers, position, data->data(), length);
    held_.put({.offset = offset + position, .length = length, .order = order_, .data = std::move(data)});
    position += length;
  }
}

Task<Result<>> VolatileNode::write(uint64_t offset, Buffers buffers, WriteFlags flags) {
  SPINDLE_CO_TRY(check_modification("write", offset, buffers.size));
  if (buffers.size == 0) co_return Result<>{};
  const uint64_t cost = cost_of_write(buffers.size);
  if (flags.fua || cost > options_.max_bytes / 2) co_return co_await write_through(offset, buffers, flags);
  auto room = co_await make_room(cost);
  if (!room) co_return room;
  // The file may have been cut while room was made.
  SPINDLE_CO_TRY(check_range("write", offset, buffers.size));
  hold(offset, buffers);
  co_return Result<>{};
}

Task<Result<>> VolatileNode::write_through(uint64_t offset, Buffers buffers, WriteFlags flags) {
  auto room = co_await make_room(kSplitCost);
  if (!room) co_return room;
  Turns::Turn turn(turns_);
  co_await turn;
  auto result = co_await hand_down_size();
  if (!result) co_return result;
  SPINDLE_CO_TRY(check_range("write", offset, buffers.size));
  const uint64_t before = order_;
  discards_.cut(offset, offset + buffers.size, before);
  result = co_await child_->write(offset, buffers, flags);
  if (result)
    held_.cut(offset, offset + buffers.size, before);  // a write that completed meanwhile stays held
  co_return result;
}

Task<Result<>> VolatileNode::write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) {
  SPINDLE_CO_TRY(check_modification("write_zeroes", offset, length));
  if (length == 0) co_return Result<>{};
  const uint64_t cost = cost_of_write(0);
  if (flags.fua || cost > options_.max_bytes / 2) co_return co_await zero_through(offset, length, flags);
  auto room = co_await make_room(cost);
  if (!room) co_return room;
  SPINDLE_CO_TRY(check_range("write_zeroes", offset, length));
  ++order_;
  discards_.cut(offset, offset + length, order_);
  held_.put({.offset = offset, .length = length, .order = order_, .unmap = flags.unmap});
  co_return Result<>{};
}

Task<Result<>> VolatileNode::zero_through(uint64_t offset, uint64_t length, ZeroFlags flags) {
  auto room = co_await make_room(kSplitCost);
  if (!room) co_return room;
  Turns::Turn turn(turns_);
  co_await turn;
  auto result = co_await hand_down_size();
  if (!result) co_return result;
  SPINDLE_CO_TRY(check_range("write_zeroes", offset, length));
  const uint64_t before = order_;
  discards_.cut(offset, offset + length, before);
  result = co_await child_->write_zeroes(offset, length, flags);
  if (result) held_.cut(offset, offset + length, before);
  co_return result;
}

Task<Result<>> VolatileNode::discard(uint64_t offset, uint64_t length) {
  SPINDLE_CO_TRY(check_modification("discard", offset, length));
  if (length == 0) co_return Result<>{};
  const uint64_t cost = cost_of_write(0);
  if (cost > options_.max_bytes / 2) co_return co_await discard_through(offset, length);
  auto room = co_await make_room(cost);
  if (!room) co_return room;
  SPINDLE_CO_TRY(check_range("discard", offset, length));
  ++order_;
  discards_.put({.offset = offset, .length = length, .order = order_});
  co_return Result<>{};
}

Task<Result<>> VolatileNode::discard_through(uint64_t offset, uint64_t length) {
  Turns::Turn turn(turns_);
  co_await turn;
  auto result = co_await hand_down_size();
  if (!result) co_return result;
  SPINDLE_CO_TRY(check_range("discard", offset, length));
  co_return co_await child_->discard(offset, length);
}

Task<Result<>> VolatileNode::flush() {
  Turns::Turn turn(turns_);
  co_await turn;
  const uint64_t covered = order_;
  auto result = co_await hand_down_all();
  if (result) result = co_await child_->flush();
  if (result) {
    held_.drop_up_to(covered);
  } else {
    flush_failed_ = true;
  }
  co_return result;
}

Task<Result<>> VolatileNode::hand_down_all() {
  auto result = co_await hand_down_size();
  if (!result) co_return result;
  const auto discards = discards_.all();
  auto pieces = held_.all();
  std::reverse(pieces.begin(), pieces.end());
  for (const auto& piece : discards) {
    result = co_await child_->discard(piece.offset, piece.length);
    if (!result) co_return result;
    discards_.cut(piece.offset, piece.end(), piece.order);
  }
  for (const auto& piece : pieces) {
    result = co_await hand_down(piece);
    if (!result) co_return result;
  }
  co_return result;
}

Task<Result<>> VolatileNode::hand_down(const HeldMap::Piece& piece) {
  if (!piece.data)
    co_return co_await child_->write_zeroes(piece.offset, piece.length, {.unmap = piece.unmap});
  // A write does not change its buffer; iovec has no const.
  const iovec part{const_cast<std::byte*>(piece.bytes()), piece.length};
  const Buffers buffers(std::span(&part, 1), piece.length);
  co_return co_await child_->write(piece.offset, buffers, WriteFlags{});
}

// Makes the child as long as what is shown. First down to where its bytes no longer count, so that what was
// cut off and grown again reads as zeroes.
Task<Result<>> VolatileNode::hand_down_size() {
  for (;;) {
    if (valid_ < child_->size()) {
      auto result = co_await child_->resize(valid_);
      if (!result) co_return result;
      continue;  // it may have become smaller still
    }
    if (size_ <= child_->size()) co_return Result<>{};
    const uint64_t target = lowest_ = size_;
    auto result = co_await child_->resize(target);
    if (!result) co_return result;
    valid_ = std::min(target, lowest_);
  }
}

Task<Result<>> VolatileNode::make_room(uint64_t bytes) {
  // With nothing held there is no room to be made, and none is needed: what does not fit in half of it is not
  // held.
  const auto enough = [this, bytes] {
    return held_bytes() == 0 || held_bytes() + bytes <= options_.max_bytes;
  };
  if (enough()) co_return Result<>{};
  Turns::Turn turn(turns_);
  co_await turn;
  while (!enough()) {
    auto result = co_await hand_down_size();
    if (!result) co_return result;
    const auto discards = discards_.all();
    auto pieces = held_.all();
    std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.order < b.order; });
    for (const auto& piece : discards) {
      result = co_await child_->discard(piece.offset, piece.length);
      if (!result) co_return result;
      discards_.cut(piece.offset, piece.end(), piece.order);
    }
    for (const auto& piece : pieces) {
      if (held_bytes() <= options_.max_bytes / 2) break;
      result = co_await hand_down(piece);
      if (!result) co_return result;
      held_.cut(piece.offset, piece.end(), piece.order);
    }
  }
  co_return Result<>{};
}

Task<Result<Extent>> VolatileNode::map(uint64_t offset, uint64_t length) {
  SPINDLE_CO_TRY(check_range("map", offset, length));
  Extent extent{.offset = offset, .length = length};
  const HeldMap::Piece* piece = held_.at_or_after(offset);
  if (piece && piece->offset <= offset) {
    extent.length = std::min(length, piece->end() - offset);
    (piece->data ? extent.data : extent.zero) = true;
    co_return extent;
  }
  if (piece) extent.length = std::min(length, piece->offset - offset);
  if (offset >= valid_) {
    extent.zero = true;
    co_return extent;
  }
  extent.length = std::min(extent.length, valid_ - offset);
  co_return co_await child_->map(offset, extent.length);
}

Task<Result<>> VolatileNode::resize(uint64_t size) {
  if (facts_.read_only) co_return std::unexpected(Error::from_errno(EROFS, "resize", facts_.name));
  if (size > static_cast<uint64_t>(INT64_MAX)) {
    co_return std::unexpected(Error::from_errno(EFBIG, "resize", facts_.name));
  }
  ++order_;
  if (size < size_) {
    held_.cut(size, UINT64_MAX, order_);
    discards_.cut(size, UINT64_MAX, order_);
  }
  valid_ = std::min(valid_, size);
  lowest_ = std::min(lowest_, size);
  size_ = size;
  co_return Result<>{};
}

void VolatileNode::drop() {
  held_.clear();
  discards_.clear();
  size_ = valid_ = child_->size();
}

Task<Result<>> VolatileNode::close() {
  Result<> result;
  if (!flush_failed_ && !facts_.read_only) {
    Turns::Turn turn(turns_);
    co_await turn;
    result = co_await hand_down_all();
  }
  auto closed = co_await child_->close();
  if (result && !closed) result = std::move(closed);
  co_return result;
}

}  // namespace spindle
