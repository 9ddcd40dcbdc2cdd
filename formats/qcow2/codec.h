// Compressed clusters: one cluster in, one stream out, and the reverse.
//
// What is written is what QEMU writes, so that its versions can read it: raw deflate with a window of 4 KiB
// for zlib, one frame with its content's size for zstd. What is read may come from anybody: deflate with any
// window, several zstd frames in a row. A stream ends where it says; its room in the image is rounded to
// sectors, so whatever follows it is nobody's and ignored.
//
// Nothing is believed: a stream that ends early, makes less than a cluster or says it is larger than one is
// Corrupt, and neither span is ever overrun. Memory: what zlib and zstd need for one cluster; windows that a
// stream asks for are not allocated, since the cluster itself is the window.
//
// Errors name neither file nor offset, which only the caller knows.
//
// Threading: any thread, several at once. zstd's working memory is kept per thread, and goes with it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "block/result.h"
#include "formats/qcow2/header.h"

namespace spindle::qcow2 {

/// Compresses `cluster`, at most 2 MiB, into `room`. The bytes used of it; nullopt if they do not suffice,
/// and then what `room` holds is undefined. Whoever wants to save space gives less room than a cluster has.
Result<std::optional<std::size_t>> compress(Compression type, std::span<const std::byte> cluster,
                                            std::span<std::byte> room);

/// Fills `cluster`, at most 2 MiB, from `stream` and what follows it. Corrupt if it cannot be filled; then it
/// holds anything.
Result<> decompress(Compression type, std::span<const std::byte> stream, std::span<std::byte> cluster);

}  // namespace spindle::qcow2
