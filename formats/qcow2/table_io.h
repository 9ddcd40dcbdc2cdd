// Reading and writing the tables of a qcow2 image that no guest uses: 64-bit words, and bytes.
//
// A file may end within its last cluster, so what lies behind its end reads as zeroes; whoever needs to know
// asks for the file's size. A write makes the file longer where it must. Nothing here flushes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "block/node.h"

namespace spindle::qcow2 {

/// Any offset is allowed.
Task<Result<>> read_padded(Node& file, uint64_t offset, std::span<std::byte> bytes);
Task<Result<>> write_bytes(Node& file, uint64_t offset, std::span<const std::byte> bytes);

/// `count` is bounded by the caller, whose memory it is.
Task<Result<std::vector<uint64_t>>> read_words(Node& file, uint64_t offset, uint64_t count);
Task<Result<>> write_words(Node& file, uint64_t offset, std::span<const uint64_t> words);

}  // namespace spindle::qcow2
