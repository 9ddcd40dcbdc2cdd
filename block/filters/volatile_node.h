// volatile: a volatile write cache. It holds writes, zeroes, discards and truncates in memory until a flush
// or a FUA write passes. Reads see them. Killing the process is a power cut: what no flush covered is gone,
// however long ago it completed. This is how the durability contract is tested.
//
// - A flush hands down all that had completed when its turn came, in an order of its own (sizes, discards,
// then
//   data and zeroes from the highest offset to the lowest: not the order they came in), then flushes the
//   child. What was handed down stays held until that flush succeeded; if anything fails, the flush fails and
//   all of it stays held. Writes that arrive meanwhile are held.
// - A FUA write or zero-write goes straight to the child as FUA, by itself; what else is held stays held.
// - Discards promise nothing here: until they are handed down, reads see what was there.
// - Memory: at most `max_bytes`, counting 128 bytes for each piece. Before a write would exceed it, the
// oldest pieces
//   are handed down *without* a flush until half is free: D1 allows data to become durable early. If that
//   fails, so does the write. What would take more than half of `max_bytes` by itself is handed down at once,
//   so with a very small `max_bytes` everything is.
//   What was handed down, be it so or by a failed flush, survives the death of the process as any write does
//   that reached the host.
// - close() hands down what is held, without a flush, but nothing after a failed flush (D6).
//
// Hand-downs (flush, FUA, making room) take turns, since two of them in the child together would be unordered
// where they overlap.
//
// Threading: the node's reactor only.
#pragma once

#include <memory>
#include <vector>

#include "block/filters/held_map.h"
#include "block/filters/turn.h"
#include "block/node.h"

namespace spindle {

class VolatileNode final : public Node {
 public:
  struct Options {
    uint64_t max_bytes = 256ull << 20;
  };
  VolatileNode(std::shared_ptr<Node> child, Options options);

  const NodeFacts& facts() const override { return facts_; }
  uint64_t size() const override { return size_; }
  Task<Result<>> read(uint64_t offset, Buffers buffers) override;
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override;
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override;
  Task<Result<>> discard(uint64_t offset, uint64_t length) override;
  Task<Result<>> flush() override;
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override;
  Task<Result<>> resize(uint64_t size) override;
  Task<Result<>> close() override;
  Node* child() const override { return child_.get(); }
  void abandon() override {
    flush_failed_ = true;
    child_->abandon();
  }

  /// A power cut: forgets all that is held. No operation may be in flight.
  void drop();
  /// Bytes held, as counted against max_bytes.
  uint64_t held_bytes() const { return held_.bytes() + discards_.bytes(); }
  bool holds_nothing() const { return held_.empty() && discards_.empty() && size_ == child_->size(); }

 private:
  void hold(uint64_t offset, const Buffers& buffers);
  Result<> check_modification(const char* operation, uint64_t offset, uint64_t length) const;
  Task<Result<>> make_room(uint64_t bytes);
  Task<Result<>> write_through(uint64_t offset, Buffers buffers, WriteFlags flags);
  Task<Result<>> zero_through(uint64_t offset, uint64_t length, ZeroFlags flags);
  Task<Result<>> discard_through(uint64_t offset, uint64_t length);
  // The caller of these has the turn.
  Task<Result<>> hand_down_size();
  Task<Result<>> hand_down_all();
  Task<Result<>> hand_down(const HeldMap::Piece& piece);

  std::shared_ptr<Node> child_;
  Options options_;
  NodeFacts facts_;
  HeldMap held_;
  HeldMap discards_;     // as zero pieces; removed where a later write comes
  uint64_t order_ = 0;   // of the latest modification
  uint64_t size_;        // what is shown
  uint64_t valid_;       // below it the child's bytes count; never above the child's size
  uint64_t lowest_ = 0;  // the smallest size shown since the resize of the child under way began
  bool flush_failed_ = false;
  Turns turns_;
};

}  // namespace spindle
