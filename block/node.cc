#include "block/node.h"

#include <fmt/format.h>

namespace spindle {

Buffers::Buffers(std::span<const iovec> iovecs) : parts(iovecs) {
  for (const iovec& part : iovecs) size += part.iov_len;
}

std::optional<Error> Node::check_range(const char* operation, uint64_t offset, uint64_t length) const {
  const uint64_t end = size();
  if (offset <= end && length <= end - offset) return std::nullopt;
  Error error = Error::invalid(operation, facts().name,
                               fmt::format("{} bytes reach beyond the end at {}", length, end));
  error.offset = offset;
  return error;
}

}  // namespace spindle
