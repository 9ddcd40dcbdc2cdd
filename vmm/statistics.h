// What --stats-json writes beside the disks' counters: how much memory the monitor itself takes.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "block/result.h"

namespace spindle::vmm {

struct MemoryUse {
  uint64_t resident = 0;        ///< of the process, bytes
  uint64_t guest_resident = 0;  ///< of it, pages of guest RAM
  uint64_t overhead() const { return resident - guest_resident; }
};

/// Reads a file in the format of /proc/PID/smaps; mappings of the memfd called `guest_memfd` count as the
/// guest's.
Result<MemoryUse> memory_use(const std::string& guest_memfd, const std::string& smaps = "/proc/self/smaps");

/// Replaces `file` as one step: who reads it sees the old or the new one, never a part. Symbolic links are
/// followed. What is no regular file (/dev/null, a FIFO) is written to directly, without waiting for a
/// reader.
Result<> write_json_file(const std::string& file, const nlohmann::ordered_json& json);

/// Whether write_json_file() could do its work now, as far as that can be told without touching `file`.
Result<> check_json_file(const std::string& file);

}  // namespace spindle::vmm
