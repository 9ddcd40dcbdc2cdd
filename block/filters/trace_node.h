// trace: says when the protocol below began and ended an operation, for a trace (block/trace/trace.h). Every
// graph has one over its protocol; while no trace is recorded it hands on.
//
// The span is under the request that was handed down to this operation. What a format does by itself has
// none, and gets one of its own.
//
// Threading: the node's reactor only.
#pragma once

#include <memory>

#include "block/node.h"
#include "block/trace/trace.h"

namespace spindle {

class TraceNode final : public Node {
 public:
  explicit TraceNode(std::shared_ptr<Node> child);

  const NodeFacts& facts() const override { return child_->facts(); }
  uint64_t size() const override { return child_->size(); }
  Task<Result<>> read(uint64_t offset, Buffers buffers) override {
    if (!trace::on()) [[likely]]
      return child_->read(offset, buffers);
    return traced("node read", {offset, buffers.size}, child_->read(offset, buffers));
  }
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override {
    if (!trace::on()) [[likely]]
      return child_->write(offset, buffers, flags);
    return traced(flags.fua ? "node write, FUA" : "node write", {offset, buffers.size},
                  child_->write(offset, buffers, flags));
  }
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override {
    if (!trace::on()) [[likely]]
      return child_->write_zeroes(offset, length, flags);
    return traced("node write zeroes", {offset, length}, child_->write_zeroes(offset, length, flags));
  }
  Task<Result<>> discard(uint64_t offset, uint64_t length) override {
    if (!trace::on()) [[likely]]
      return child_->discard(offset, length);
    return traced("node discard", {offset, length}, child_->discard(offset, length));
  }
  Task<Result<>> flush() override {
    if (!trace::on()) [[likely]]
      return child_->flush();
    return traced("node flush", {}, child_->flush());
  }
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override { return child_->map(offset, length); }
  Task<Result<>> resize(uint64_t size) override { return child_->resize(size); }
  Task<Result<>> close() override { return child_->close(); }
  Node* child() const override { return child_.get(); }

 private:
  Task<Result<>> traced(const char* name, trace::Range range, Task<Result<>> operation);

  std::shared_ptr<Node> child_;
  trace::Track track_;  // of operations that belong to no request
};

}  // namespace spindle
