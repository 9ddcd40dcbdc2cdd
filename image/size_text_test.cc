#include "image/size_text.h"

#include <doctest/doctest.h>

namespace spindle::image {

TEST_CASE("size text: the digits of qemu-img") {
  CHECK(size_text(0) == "0 B");
  CHECK(size_text(512) == "512 B");
  CHECK(size_text(999) == "999 B");
  CHECK(size_text(1000) == "0.977 KiB");
  CHECK(size_text(1024) == "1 KiB");
  CHECK(size_text(1 << 20) == "1 MiB");
  CHECK(size_text((1 << 20) + 1) == "1 MiB");
  CHECK(size_text(3ull << 29) == "1.5 GiB");
  CHECK(size_text(7ull << 60) == "7 EiB");
  CHECK(size_text(~uint64_t{0}) == "16 EiB");
}

TEST_CASE("quantity text: the digits of qemu-io") {
  CHECK(quantity_text(0) == "0 bytes");
  CHECK(quantity_text(5) == "5 bytes");
  CHECK(quantity_text(1023) == "1023 bytes");
  CHECK(quantity_text(65536) == "64 KiB");
  CHECK(quantity_text(5000) == "4.883 KiB");
  CHECK(quantity_text(1.5 * 1024 * 1024 * 1024) == "1.500 GiB");
}

}  // namespace spindle::image
