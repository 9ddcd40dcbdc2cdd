// What a file needs: its kind, its size, and the alignment that O_DIRECT asks for. Asked once, at open.
//
// Everything here blocks; it runs before the first request.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "block/result.h"

namespace spindle {

struct FileKind {
  bool block_device = false;
  uint32_t block_size = 4096;  ///< what the host allocates by: the granule of a discard
  bool rotational = false;     ///< as the kernel claims; virtual disks often claim it
};

/// Refuses directories, FIFOs, sockets and character devices with an error that says so.
Result<FileKind> kind_of_file(const struct stat& status, const std::string& path);

/// Bytes: of a regular file its length, of a block device its capacity.
Result<uint64_t> size_of_file(int fd, bool block_device, const std::string& path);

struct DirectAlignment {
  uint32_t request = 1;  ///< offsets and lengths
  uint32_t memory = 1;   ///< addresses
};

/// What transfers on `fd`, open with O_DIRECT, must be aligned to: as the kernel says (STATX_DIOALIGN), else
/// the logical block size of a block device, else found by trying reads; 4096 if the file is too short to
/// try.
DirectAlignment direct_alignment(int fd, bool block_device);

/// Another open file of the same file, with `flags` (O_CLOEXEC is added): without O_DIRECT for the end of a
/// file that is no whole block and for locks, as it is for what must see write-back errors by itself.
Result<int> reopen(int fd, int flags, const std::string& path);

}  // namespace spindle
