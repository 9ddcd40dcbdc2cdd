// Sizes and amounts as QEMU's tools write them, so that scripts which read the output of those find the same
// digits here.
//
// qemu-img and qemu-io write them differently: the first with three significant digits, the second with three
// decimals that are left out when they are zeroes.
#pragma once

#include <cstdint>
#include <string>

namespace spindle::image {

/// As qemu-img: "512 B", "1 MiB", "1.5 GiB", "0.977 KiB". From 1000 of a unit on, the next larger is used.
std::string size_text(uint64_t bytes);

/// As qemu-io: "40 bytes", "4 KiB", "4.883 KiB", "981.024 MiB". `bytes` may be a rate, and so no whole
/// number.
std::string quantity_text(double bytes);

}  // namespace spindle::image
