#include "block/filters/null_node.h"

#include <cerrno>
#include <cstring>

namespace spindle {

NullNode::NullNode(Reactor& reactor, Options options) : Node(reactor), options_(options) {
  facts_.name = "null";
  facts_.supports_fua = true;
  facts_.supports_zeroes = true;
  facts_.discard_granularity = 512;
  facts_.discard_zeroes = true;
  facts_.read_only = options_.read_only;
}

Result<> NullNode::check_modification(const char* operation, uint64_t offset, uint64_t length) const {
  SPINDLE_TRY(check_range(operation, offset, length));
  if (facts_.read_only) return std::unexpected(Error::from_errno(EROFS, operation, facts_.name, offset));
  return {};
}

Task<Result<>> NullNode::read(uint64_t offset, Buffers buffers) {
  SPINDLE_CO_TRY(check_range("read", offset, buffers.size));
  if (options_.read_zeroes) {
    for (const iovec& part : buffers.parts) std::memset(part.iov_base, 0, part.iov_len);
  }
  co_return Result<>{};
}

Task<Result<>> NullNode::write(uint64_t offset, Buffers buffers, WriteFlags) {
  SPINDLE_CO_TRY(check_modification("write", offset, buffers.size));
  co_return Result<>{};
}

Task<Result<>> NullNode::write_zeroes(uint64_t offset, uint64_t length, ZeroFlags) {
  SPINDLE_CO_TRY(check_modification("write_zeroes", offset, length));
  co_return Result<>{};
}

Task<Result<>> NullNode::discard(uint64_t offset, uint64_t length) {
  SPINDLE_CO_TRY(check_modification("discard", offset, length));
  co_return Result<>{};
}

Task<Result<>> NullNode::flush() {
  co_return Result<>{};
}

Task<Result<Extent>> NullNode::map(uint64_t offset, uint64_t length) {
  SPINDLE_CO_TRY(check_range("map", offset, length));
  co_return Extent{.offset = offset, .length = length, .zero = true};
}

Task<Result<>> NullNode::resize(uint64_t size) {
  if (facts_.read_only) co_return std::unexpected(Error::from_errno(EROFS, "resize", facts_.name));
  options_.size = size;
  co_return Result<>{};
}

Task<Result<>> NullNode::close() {
  co_return Result<>{};
}

}  // namespace spindle
