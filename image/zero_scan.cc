#include "image/zero_scan.h"

#include <algorithm>
#include <cstring>

namespace spindle::image {

bool all_zero(std::span<const std::byte> bytes) {
  constexpr std::size_t kHead = 16;
  std::size_t head = std::min(bytes.size(), kHead);
  for (std::size_t i = 0; i < head; ++i) {
    if (bytes[i] != std::byte{0}) return false;
  }
  if (bytes.size() <= kHead) return true;
  // If the first bytes are zero and each is equal to the one so far behind it, all are.
  return std::memcmp(bytes.data(), bytes.data() + kHead, bytes.size() - kHead) == 0;
}

void scan_zeroes(std::span<const std::byte> bytes, uint64_t image_offset, uint64_t sparse,
                 std::vector<Run>& runs) {
  runs.clear();
  uint64_t position = 0;
  while (position < bytes.size()) {
    const uint64_t to_boundary = sparse - (image_offset + position) % sparse;
    const uint64_t length = std::min<uint64_t>(to_boundary, bytes.size() - position);
    // What is cut short by the range's own ends may go on outside, so it counts as a whole piece.
    const bool zero = all_zero(bytes.subspan(position, length));
    if (!runs.empty() && runs.back().zero == zero) {
      runs.back().length += length;
    } else {
      runs.push_back({.offset = position, .length = length, .zero = zero});
    }
    position += length;
  }
}

}  // namespace spindle::image
