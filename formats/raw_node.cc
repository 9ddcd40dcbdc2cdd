#include "formats/raw_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <limits>

namespace spindle {

Result<std::shared_ptr<RawNode>> RawNode::open(std::shared_ptr<Node> child, Options options) {
  const uint64_t file_size = child->size();
  const std::string& name = child->facts().name;
  if (options.offset > file_size) {
    return std::unexpected(Error::invalid(
        "open", name,
        fmt::format("offset={} lies beyond the end of the file at {}", options.offset, file_size)));
  }
  if (options.size && *options.size > file_size - options.offset) {
    return std::unexpected(
        Error::invalid("open", name,
                       fmt::format("size={} from offset={} reaches beyond the end of the file at {}",
                                   *options.size, options.offset, file_size)));
  }
  return std::shared_ptr<RawNode>(new RawNode(std::move(child), options));
}

RawNode::RawNode(std::shared_ptr<Node> child, Options options)
    : Node(child->reactor()), child_(std::move(child)), options_(options), facts_(child_->facts()) {
  // An odd offset takes the alignment away from requests that have it: what is cheap then is nothing.
  if (options_.offset % facts_.request_alignment != 0) facts_.request_alignment = 1;
  if (facts_.discard_granularity != 0 && options_.offset % facts_.discard_granularity != 0) {
    // Where the file's granules begin is no granule's start for us; none that the offset keeps in step is
    // larger than this.
    facts_.discard_granularity = 1u << std::min(std::countr_zero(options_.offset), 31);
  }
}

uint64_t RawNode::size() const {
  const uint64_t file_size = child_->size();
  const uint64_t rest = file_size > options_.offset ? file_size - options_.offset : 0;
  return options_.size ? std::min(*options_.size, rest) : rest;
}

Task<Result<>> RawNode::read(uint64_t offset, Buffers buffers) {
  if (auto inside = check_range("read", offset, buffers.size); !inside) return finished(std::move(inside));
  return child_->read(options_.offset + offset, buffers);
}

Task<Result<>> RawNode::write(uint64_t offset, Buffers buffers, WriteFlags flags) {
  if (auto inside = check_range("write", offset, buffers.size); !inside) return finished(std::move(inside));
  return child_->write(options_.offset + offset, buffers, flags);
}

Task<Result<>> RawNode::write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) {
  if (auto inside = check_range("write_zeroes", offset, length); !inside) return finished(std::move(inside));
  return child_->write_zeroes(options_.offset + offset, length, flags);
}

Task<Result<>> RawNode::discard(uint64_t offset, uint64_t length) {
  if (auto inside = check_range("discard", offset, length); !inside) return finished(std::move(inside));
  return child_->discard(options_.offset + offset, length);
}

Task<Result<Extent>> RawNode::map(uint64_t offset, uint64_t length) {
  if (options_.offset == 0 && !options_.size) return child_->map(offset, length);
  return map_window(offset, length);
}

Task<Result<Extent>> RawNode::map_window(uint64_t offset, uint64_t length) {
  SPINDLE_CO_TRY(check_range("map", offset, length));
  auto extent = co_await child_->map(options_.offset + offset, length);
  if (extent) extent->offset = offset;
  co_return extent;
}

Task<Result<>> RawNode::resize(uint64_t new_size) {
  if (facts_.read_only) {
    return finished(Result<>(std::unexpected(Error::from_errno(EROFS, "resize", facts_.name))));
  }
  if (!options_.size && new_size <= std::numeric_limits<int64_t>::max() - options_.offset) {
    return child_->resize(options_.offset + new_size);
  }
  Error error =
      Error::invalid("resize", facts_.name,
                     options_.size ? "a raw image with a size= of its own is a fixed window of its file"
                                   : "the new size does not fit a file");
  if (options_.size) error.kind = ErrorKind::NotSupported;
  return finished(Result<>(std::unexpected(std::move(error))));
}

}  // namespace spindle
