// BootFile: a kernel or initrd on the host, read in pieces straight into guest memory. It stays open for the
// life of the machine, because a machine reset loads it again; nothing of it is kept in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "block/result.h"
#include "vmm/kvm.h"

namespace spindle::vmm {

class BootFile {
 public:
  /// Regular, not empty. `what` ("kernel", "initrd") is for messages.
  static Result<BootFile> open(const std::string& path, const std::string& what);

  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  /// Fills `bytes` from `offset`. Invalid if the file does not reach that far (it may have shrunk meanwhile).
  Result<> read(uint64_t offset, std::span<uint8_t> bytes) const;
  /// An Invalid error about this file: "kernel FILE: detail".
  std::unexpected<Error> bad(std::string detail) const;

 private:
  BootFile(Fd fd, std::string path, std::string what, uint64_t size)
      : fd_(std::move(fd)), path_(std::move(path)), what_(std::move(what)), size_(size) {}

  Fd fd_;
  std::string path_;
  std::string what_;
  uint64_t size_;
};

}  // namespace spindle::vmm
