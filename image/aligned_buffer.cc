#include "image/aligned_buffer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

namespace spindle::image {

Result<AlignedBuffer> AlignedBuffer::allocate(uint64_t size) {
  constexpr uint64_t kMost = uint64_t{1} << 46;  // more than any process can have, and far from an overflow
  AlignedBuffer buffer;
  if (size <= kMost) {
    const uint64_t whole = (std::max<uint64_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment;
    buffer.memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, whole)));
    buffer.size_ = size;
  }
  if (!buffer.memory_) {
    Error error = Error::from_errno(ENOMEM, "allocate a buffer", "");
    error.detail = fmt::format("{} bytes are more than this host gives", size);
    return std::unexpected(std::move(error));
  }
  return buffer;
}

}  // namespace spindle::image
