// ImageNode: a SectorImage as the file of a node graph. Everything completes at once; writes go into the
// image, where they can be taken back; a flush has nothing to do.
//
// map() tells holes (sectors of zeroes) from data, a page at a time, so that readers skip what is empty.
//
// Threading: the reactor's thread.
#pragma once

#include <vector>

#include "block/node.h"
#include "crash/image.h"

namespace spindle::crash {

class ImageNode final : public Node {
 public:
  ImageNode(Reactor& reactor, SectorImage& image);

  const NodeFacts& facts() const override { return facts_; }
  uint64_t size() const override { return image_.size(); }
  Task<Result<>> read(uint64_t offset, Buffers buffers) override;
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override;
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override;
  Task<Result<>> discard(uint64_t offset, uint64_t length) override;
  Task<Result<>> flush() override { return finished(Result<>{}); }
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override;
  Task<Result<>> resize(uint64_t size) override;
  Task<Result<>> close() override { return finished(Result<>{}); }

 private:
  SectorImage& image_;
  NodeFacts facts_;
};

/// What the media of this room say of themselves: a file on a file system that can punch holes.
NodeFacts facts_of_medium(std::string name);
/// The status of the run of `image` at `offset`.
Extent extent_of(const SectorImage& image, uint64_t offset, uint64_t length);
void read_into(const SectorImage& image, uint64_t offset, const Buffers& buffers);

}  // namespace spindle::crash
