#include "block/filters/copy_on_read_node.h"

#include <algorithm>
#include <cstring>

namespace spindle {
namespace {

// The end of a range that a caller may have got wrong; the child answers for it.
uint64_t end_of(uint64_t offset, uint64_t length) {
  return length > UINT64_MAX - offset ? UINT64_MAX : offset + length;
}

}  // namespace

CopyOnReadNode::CopyOnReadNode(std::shared_ptr<Node> child)
    : Node(child->reactor()), child_(std::move(child)), ranges_(reactor()), turns_(reactor()) {}

Task<Result<>> CopyOnReadNode::read(uint64_t offset, Buffers buffers) {
  if (abandoned_ || !child_->backing() || !check_range("read", offset, buffers.size))
    return child_->read(offset, buffers);
  return read_copying(offset, buffers);
}

// The first run of the range that comes from a layer below; empty if none does.
Task<Result<Extent>> CopyOnReadNode::first_from_below(uint64_t offset, uint64_t length) {
  const uint64_t end = offset + length;
  while (offset < end) {
    auto mapping = child_->map(offset, end - offset);
    auto run = co_await mapping;
    if (!run || run->length == 0) co_return run;
    run->length = std::min(run->length, end - offset);
    if (run->depth > 0) co_return run;
    offset += run->length;
  }
  co_return Extent{.offset = end, .length = 0};
}

Task<Result<>> CopyOnReadNode::read_copying(uint64_t offset, Buffers buffers) {
  // Without a map there is nothing to copy by, but still something to read.
  auto below = co_await first_from_below(offset, buffers.size);
  if (!below || below->length == 0) co_return co_await child_->read(offset, buffers);

  RangeLock::Hold hold(ranges_, offset, offset + buffers.size, RangeLock::Mode::Exclusive);
  co_await hold;
  Turns::Turn turn(turns_);
  co_await turn;
  buffer_.resize(std::min(buffers.size, kPiece));
  std::size_t part = 0;
  uint64_t in_part = 0;
  for (uint64_t done = 0; done < buffers.size;) {
    const auto piece = std::span(buffer_).first(std::min(kPiece, buffers.size - done));
    SPINDLE_CO_TRY(co_await read_piece(offset + done, piece));
    for (uint64_t at = 0; at < piece.size();) {
      const iovec& target = buffers.parts[part];
      const uint64_t length = std::min<uint64_t>(piece.size() - at, target.iov_len - in_part);
      std::memcpy(static_cast<std::byte*>(target.iov_base) + in_part, piece.data() + at, length);
      at += length;
      in_part += length;
      if (in_part != target.iov_len) continue;
      ++part;
      in_part = 0;
    }
    done += piece.size();
  }
  co_return Result<>{};
}

Task<Result<>> CopyOnReadNode::read_piece(uint64_t offset, std::span<std::byte> piece) {
  const iovec whole{piece.data(), piece.size()};
  SPINDLE_CO_TRY(co_await child_->read(offset, Buffers(std::span(&whole, 1))));
  for (uint64_t at = 0; at < piece.size() && !abandoned_;) {
    auto run = co_await first_from_below(offset + at, piece.size() - at);
    if (!run || run->length == 0) co_return Result<>{};
    at = run->offset - offset;
    const iovec bytes{piece.data() + at, run->length};
    auto copying = run->zero ? child_->write_zeroes(run->offset, run->length, {})
                             : child_->write(run->offset, Buffers(std::span(&bytes, 1)), {});
    if (!co_await copying) co_return Result<>{};  // the guest has its bytes, and the overlay what it had
    copied_ += run->length;
    at += run->length;
  }
  co_return Result<>{};
}

Task<Result<>> CopyOnReadNode::write(uint64_t offset, Buffers buffers, WriteFlags flags) {
  RangeLock::Hold hold(ranges_, offset, end_of(offset, buffers.size), RangeLock::Mode::Shared);
  co_await hold;
  co_return co_await child_->write(offset, buffers, flags);
}

Task<Result<>> CopyOnReadNode::write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) {
  RangeLock::Hold hold(ranges_, offset, end_of(offset, length), RangeLock::Mode::Shared);
  co_await hold;
  co_return co_await child_->write_zeroes(offset, length, flags);
}

Task<Result<>> CopyOnReadNode::discard(uint64_t offset, uint64_t length) {
  RangeLock::Hold hold(ranges_, offset, end_of(offset, length), RangeLock::Mode::Shared);
  co_await hold;
  co_return co_await child_->discard(offset, length);
}

Task<Result<>> CopyOnReadNode::resize(uint64_t size) {
  RangeLock::Hold hold(ranges_, 0, UINT64_MAX, RangeLock::Mode::Shared);
  co_await hold;
  co_return co_await child_->resize(size);
}

}  // namespace spindle
