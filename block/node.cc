#include "block/node.h"

#include <fmt/format.h>

namespace spindle {

Buffers::Buffers(std::span<const iovec> iovecs) : parts(iovecs) {
  for (const iovec& part : iovecs) size += part.iov_len;
}

Result<> Node::out_of_range(const char* operation, uint64_t offset, uint64_t length, uint64_t end) const {
  Error error = Error::invalid(operation, facts().name,
                               fmt::format("{} bytes reach beyond the end at {}", length, end));
  error.offset = offset;
  return std::unexpected(std::move(error));
}

}  // namespace spindle
