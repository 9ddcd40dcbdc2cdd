// record: logs every operation that reaches the protocol and may change it, with its data, into a file
// (record_log.h), so that what a power cut may leave behind can be worked out later. Reads change nothing and
// are not logged.
//
// The log begins with what the file holds, so that it is complete by itself; a large image makes a large log.
//
// - A modification is logged before it goes on, and its end before anybody hears of it. One that cannot be
//   logged fails with the log's error, and so do all later ones: a log with gaps would show states that never
//   were.
// - What is written is copied first: a guest may change its memory while the write is under way, and log and
//   file must hold the same bytes. The copies are in a pool (bounce_pool.h has the bound), so what is longer
//   than one of its buffers is several operations, one after the other.
//
// Threading: the node's reactor only.
#pragma once

#include <memory>
#include <string>

#include "block/node.h"
#include "block/protocols/bounce_pool.h"
#include "block/record/log_writer.h"

namespace spindle {

class RecordNode final : public Node {
 public:
  /// Makes the log `path` and puts into it what `child` holds. On an error the caller closes the child.
  static Task<Result<std::shared_ptr<Node>>> open(std::shared_ptr<Node> child, std::string path);
  /// The same into a log that has begun, with the child's size in its header.
  static Task<Result<std::shared_ptr<Node>>> open(std::shared_ptr<Node> child,
                                                  std::unique_ptr<record::LogWriter> log);
  static record::Header header_of(const Node& child);

  const NodeFacts& facts() const override { return child_->facts(); }
  uint64_t size() const override { return child_->size(); }
  Task<Result<>> read(uint64_t offset, Buffers buffers) override { return child_->read(offset, buffers); }
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override;
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override;
  Task<Result<>> discard(uint64_t offset, uint64_t length) override;
  Task<Result<>> flush() override;
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override { return child_->map(offset, length); }
  Task<Result<>> resize(uint64_t size) override;
  Task<Result<>> close() override;
  Node* child() const override { return child_.get(); }

 private:
  RecordNode(std::shared_ptr<Node> child, std::unique_ptr<record::LogWriter> log);
  Task<Result<>> log_base();
  /// Around an operation: `entry` as it is submitted, then its completion, which fails if it cannot be
  /// logged.
  template <typename Start>
  Task<Result<>> logged(record::Entry entry, std::span<const std::byte> content, Start start);

  std::shared_ptr<Node> child_;
  std::unique_ptr<record::LogWriter> log_;
  BouncePool copies_;
  uint64_t last_id_ = 0;
};

}  // namespace spindle
