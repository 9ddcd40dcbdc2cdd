#include "image/zero_scan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace spindle::image {
namespace {

std::vector<Run> scan(const std::vector<std::byte>& bytes, uint64_t image_offset, uint64_t sparse) {
  std::vector<Run> runs{{.offset = 7, .length = 7, .zero = true}};  // what an earlier scan left
  scan_zeroes(bytes, image_offset, sparse, runs);
  return runs;
}

}  // namespace

TEST_CASE("zero scan: one byte anywhere is seen, at every length") {
  for (std::size_t length : {0, 1, 7, 15, 16, 17, 31, 33, 4096, 4097}) {
    std::vector<std::byte> bytes(length);
    CHECK(all_zero(bytes));
    for (std::size_t at = 0; at < length; at += std::max<std::size_t>(1, length / 40)) {
      bytes[at] = std::byte{1};
      CHECK_FALSE(all_zero(bytes));
      bytes[at] = std::byte{0};
    }
    if (length > 0) {
      bytes.back() = std::byte{0x80};
      CHECK_FALSE(all_zero(bytes));
    }
  }
}

TEST_CASE("zero scan: pieces are aligned in the image, not in the buffer") {
  std::vector<std::byte> bytes(4096);
  bytes[700] = std::byte{1};
  CHECK(scan(bytes, 0, 1024) == std::vector<Run>{{0, 1024, false}, {1024, 3072, true}});
  CHECK(scan(bytes, 512, 1024) == std::vector<Run>{{0, 512, true}, {512, 1024, false}, {1536, 2560, true}});
  CHECK(scan(bytes, 0, 1 << 20) == std::vector<Run>{{0, 4096, false}});
  CHECK(scan({}, 0, 512).empty());
}

TEST_CASE("zero scan: runs cover everything, and zero runs hold zeroes only") {
  std::mt19937 random(1);  // NOLINT: the same every time
  for (int round = 0; round < 200; ++round) {
    std::vector<std::byte> bytes(random() % 20000);
    for (std::size_t at = 0; at < bytes.size(); at += 1 + random() % 6000) bytes[at] = std::byte{0xff};
    uint64_t position = 0;
    for (const Run& run : scan(bytes, random() % 8192, 512u << (random() % 5))) {
      CHECK(run.offset == position);
      CHECK(run.length > 0);
      position += run.length;
      if (run.zero) CHECK(all_zero(std::span(bytes).subspan(run.offset, run.length)));
    }
    CHECK(position == bytes.size());
  }
}

}  // namespace spindle::image
