// img resize, and truncate of `spindle io`: giving an image another size.
//
// Order: the image first gets its new size; then, if that was asked for, the space behind the old end is
// reserved. After an error in between the image is longer and whole, without the reserve.
#pragma once

#include <cstdint>
#include <string>

#include "block/disk.h"

namespace spindle::image {

/// How the space that an image grows by is reserved: as holes, by the file system, or by writing zeroes.
enum class GrowBy : uint8_t { Holes, Reserving, Writing };

/// "off", "falloc", "full". "metadata" is NotSupported; anything else is Invalid.
Result<GrowBy> parse_preallocation(const std::string& text);

/// "10M", "+1G", "-512k": the size that a disk of `size` bytes is to have. Invalid, in qemu-img's words, if
/// it is no size, or leaves nothing.
Result<uint64_t> new_size(const std::string& text, uint64_t size);

/// Gives the disk `size` bytes. Reserving space is NotSupported for other formats than raw. Not durable
/// before a flush, or close().
Task<Result<>> resize_image(Disk& disk, const std::string& format, uint64_t size, GrowBy grow);

}  // namespace spindle::image
