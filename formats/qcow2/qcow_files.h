// QcowFiles: the files of an image as its commit sees them: metadata goes to the image's own, a barrier
// covers the one with the data as well, where that is another.
#pragma once

#include <memory>
#include <utility>

#include "block/node.h"

namespace spindle::qcow2 {

class QcowFiles final : public Node {
 public:
  /// `data` may be null. Both are closed by whoever opened them.
  QcowFiles(std::shared_ptr<Node> metadata, std::shared_ptr<Node> data)
      : Node(metadata->reactor()), metadata_(std::move(metadata)), data_(std::move(data)) {}

  const NodeFacts& facts() const override { return metadata_->facts(); }
  uint64_t size() const override { return metadata_->size(); }
  Task<Result<>> read(uint64_t offset, Buffers buffers) override { return metadata_->read(offset, buffers); }
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override {
    return metadata_->write(offset, buffers, flags);
  }
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override {
    return metadata_->write_zeroes(offset, length, flags);
  }
  Task<Result<>> discard(uint64_t offset, uint64_t length) override {
    return metadata_->discard(offset, length);
  }
  Task<Result<>> flush() override {
    if (!data_) return metadata_->flush();
    return flush_both();
  }
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override {
    return metadata_->map(offset, length);
  }
  Task<Result<>> resize(uint64_t size) override { return metadata_->resize(size); }
  Task<Result<>> close() override { return finished(Result<>{}); }
  Node* child() const override { return metadata_.get(); }

 private:
  Task<Result<>> flush_both() {
    auto flushed = co_await data_->flush();
    if (!flushed) co_return flushed;
    co_return co_await metadata_->flush();
  }

  std::shared_ptr<Node> metadata_;
  std::shared_ptr<Node> data_;
};

}  // namespace spindle::qcow2
