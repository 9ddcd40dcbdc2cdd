// raw: the image is its file, byte for byte. With `offset` and `size`, as QEMU's raw driver has them, it is a
// window of its file: a partition, or an image inside another.
//
// It adds nothing to a request: operations hand on the child's own task, without a frame of their own. So the
// durability of raw is the durability of its file, and it has no metadata to order.
//
// Threading: the node's reactor only.
#pragma once

#include <memory>
#include <optional>

#include "block/node.h"

namespace spindle {

class RawNode final : public Node {
 public:
  struct Options {
    uint64_t offset = 0;  ///< bytes of the file before the first byte of the disk
    std::optional<uint64_t> size =
        std::nullopt;  ///< bytes of the disk; else all from `offset` to the end of the file
  };

  /// Invalid if the window does not lie in the file.
  static Result<std::shared_ptr<RawNode>> open(std::shared_ptr<Node> child, Options options);

  const NodeFacts& facts() const override { return facts_; }
  /// Bytes. Never more than the file holds, even if the file was cut below the window.
  uint64_t size() const override;
  Task<Result<>> read(uint64_t offset, Buffers buffers) override;
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override;
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override;
  Task<Result<>> discard(uint64_t offset, uint64_t length) override;
  Task<Result<>> flush() override { return child_->flush(); }
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override;
  /// Resizes the file. NotSupported with a `size` of its own: what lies behind the window is not ours.
  Task<Result<>> resize(uint64_t size) override;
  Task<Result<>> close() override { return child_->close(); }
  Node* child() const override { return child_.get(); }

 private:
  RawNode(std::shared_ptr<Node> child, Options options);

  Task<Result<Extent>> map_window(uint64_t offset, uint64_t length);

  std::shared_ptr<Node> child_;
  Options options_;
  NodeFacts facts_;
};

}  // namespace spindle
