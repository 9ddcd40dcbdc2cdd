// null: a disk that is not there. Writes vanish, reads give zeroes (or, with read_zeroes off, leave the
// buffers as they are, which measures the layers above and nothing else). It needs no medium, so its flushes
// succeed at once.
#pragma once

#include "block/node.h"

namespace spindle {

class NullNode final : public Node {
 public:
  struct Options {
    uint64_t size = 1ull << 30;
    bool read_zeroes = true;
    bool read_only = false;
  };
  NullNode(Reactor& reactor, Options options);

  const NodeFacts& facts() const override { return facts_; }
  uint64_t size() const override { return options_.size; }
  Task<Result<>> read(uint64_t offset, Buffers buffers) override;
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override;
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override;
  Task<Result<>> discard(uint64_t offset, uint64_t length) override;
  Task<Result<>> flush() override;
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override;
  Task<Result<>> resize(uint64_t size) override;
  Task<Result<>> close() override;

 private:
  Result<> check_modification(const char* operation, uint64_t offset, uint64_t length) const;

  Options options_;
  NodeFacts facts_;
};

}  // namespace spindle
