// Finding zeroes in image data, fast: most of what is looked at is either all data, where the first bytes
// tell, or all zeroes, where the C library's memcmp compares as fast as memory is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace spindle::image {

/// True if every byte is zero; also of nothing.
bool all_zero(std::span<const std::byte> bytes);

struct Run {
  uint64_t offset = 0;  ///< from the start of what was scanned
  uint64_t length = 0;
  bool zero = false;
  bool operator==(const Run&) const = default;
};

/// Splits `bytes` into runs of data and of zeroes, in order and without gaps, in `runs` (whose memory is used
/// again). Zeroes count from `sparse` bytes of them on, in pieces that are aligned to `sparse` in the image;
/// fewer go with the data around them. `image_offset` is where `bytes` begin in the image. `sparse` is not 0.
void scan_zeroes(std::span<const std::byte> bytes, uint64_t image_offset, uint64_t sparse,
                 std::vector<Run>& runs);

}  // namespace spindle::image
