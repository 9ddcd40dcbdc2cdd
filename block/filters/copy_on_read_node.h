// copy-on-read: what a guest reads from below an overlay is written into the overlay, so that it comes from
// there the next time.
//
// It changes nothing that the guest sees, and so nothing that durability is about: a copy that is lost leaves
// what was there. Hence the node flushes nothing, does not count as a change of the disk (the sequencer above
// hears only of the guest's requests), and a copy that fails, for lack of space or otherwise, fails no read.
// After a failed flush nothing is copied any more (D6).
//
// A copy must not undo a guest's write. It holds its range exclusively from before it looks where the bytes
// come from until they are written; whatever the guest changes holds its own range shared. The bytes go
// through a buffer of ours, since the guest could change its memory between the read and the write.
//
// Bounds: one copy runs at a time, in pieces of at most 1 MiB. Reads of what the overlay has wait for none.
//
// Threading: the node's reactor only.
#pragma once

#include <memory>
#include <vector>

#include "block/filters/turn.h"
#include "block/node.h"
#include "block/protocols/range_lock.h"

namespace spindle {

class CopyOnReadNode final : public Node {
 public:
  static constexpr uint64_t kPiece = 1 << 20;

  /// `child` is a format that may have a backing file; without one nothing is ever copied.
  explicit CopyOnReadNode(std::shared_ptr<Node> child);

  const NodeFacts& facts() const override { return child_->facts(); }
  uint64_t size() const override { return child_->size(); }
  Task<Result<>> read(uint64_t offset, Buffers buffers) override;
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override;
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override;
  Task<Result<>> discard(uint64_t offset, uint64_t length) override;
  Task<Result<>> flush() override { return child_->flush(); }
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override { return child_->map(offset, length); }
  Task<Result<>> resize(uint64_t size) override;
  Task<Result<>> close() override { return child_->close(); }
  void abandon() override {
    abandoned_ = true;
    child_->abandon();
  }
  Node* child() const override { return child_.get(); }

  /// Bytes copied so far.
  uint64_t copied() const { return copied_; }

 private:
  Task<Result<>> read_copying(uint64_t offset, Buffers buffers);
  Task<Result<>> read_piece(uint64_t offset, std::span<std::byte> piece);
  Task<Result<Extent>> first_from_below(uint64_t offset, uint64_t length);

  std::shared_ptr<Node> child_;
  RangeLock ranges_;
  Turns turns_;
  std::vector<std::byte> buffer_;
  uint64_t copied_ = 0;
  bool abandoned_ = false;
};

}  // namespace spindle
