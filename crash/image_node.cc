#include "crash/image_node.h"

#include <algorithm>
#include <cerrno>

#include "block/protocols/bounce_pool.h"

namespace spindle::crash {
namespace {

constexpr uint64_t kPageSectors = 8;

}  // namespace

NodeFacts facts_of_medium(std::string name) {
  NodeFacts facts;
  facts.name = std::move(name);
  facts.discard_granularity = kSector;
  facts.supports_fua = true;
  facts.supports_zeroes = true;
  return facts;
}

Extent extent_of(const SectorImage& image, uint64_t offset, uint64_t length) {
  const uint64_t end = offset + length;
  const uint64_t last = (end + kSector - 1) / kSector;
  const uint64_t first = offset / kSector;
  const bool hole =
      image.at(first) == kZeroContent &&
      image.next_data(first, std::min(last, first + kPageSectors)) == std::min(last, first + kPageSectors);
  uint64_t to = first;
  if (hole) {
    to = image.next_data(first, last);
    // Ends with a whole page, as file systems do; unless that is where it began.
    if (to != last && to / kPageSectors * kPageSectors > first) to = to / kPageSectors * kPageSectors;
  } else {
    while (to < last) {
      const uint64_t page = std::min(last, (to / kPageSectors + 1) * kPageSectors);
      if (to != first && image.next_data(to, page) == page) break;
      to = page;
    }
  }
  return {.offset = offset,
          .length = std::min(end, to * kSector) - offset,
          .data = !hole,
          .zero = hole,
          .file_offset = offset};
}

void read_into(const SectorImage& image, uint64_t offset, const Buffers& buffers) {
  for (const iovec& part : buffers.parts) {
    image.read(offset, static_cast<std::byte*>(part.iov_base), part.iov_len);
    offset += part.iov_len;
  }
}

ImageNode::ImageNode(Reactor& reactor, SectorImage& image)
    : Node(reactor), image_(image), facts_(facts_of_medium("state")) {}

Task<Result<>> ImageNode::read(uint64_t offset, Buffers buffers) {
  if (auto inside = check_range("read", offset, buffers.size); !inside) return finished(std::move(inside));
  read_into(image_, offset, buffers);
  return finished(Result<>{});
}

Task<Result<>> ImageNode::write(uint64_t offset, Buffers buffers, WriteFlags) {
  if (auto inside = check_range("write", offset, buffers.size); !inside) return finished(std::move(inside));
  for (const iovec& part : buffers.parts) {
    image_.write(offset, static_cast<const std::byte*>(part.iov_base), part.iov_len);
    offset += part.iov_len;
  }
  return finished(Result<>{});
}

Task<Result<>> ImageNode::write_zeroes(uint64_t offset, uint64_t length, ZeroFlags) {
  if (auto inside = check_range("write_zeroes", offset, length); !inside) return finished(std::move(inside));
  image_.zero(offset, length);
  return finished(Result<>{});
}

Task<Result<>> ImageNode::discard(uint64_t offset, uint64_t length) {
  return write_zeroes(offset, length, {});
}

Task<Result<Extent>> ImageNode::map(uint64_t offset, uint64_t length) {
  if (auto inside = check_range("map", offset, length); !inside)
    return finished(Result<Extent>(std::unexpected(std::move(inside.error()))));
  return finished(Result<Extent>(extent_of(image_, offset, length)));
}

Task<Result<>> ImageNode::resize(uint64_t size) {
  if (size > kLargestImage)
    return finished(Result<>(std::unexpected(Error::from_errno(EFBIG, "resize", facts_.name, size))));
  image_.resize(size);
  return finished(Result<>{});
}

}  // namespace spindle::crash
