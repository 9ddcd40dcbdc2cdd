// AlignedBuffer: memory for image data that O_DIRECT takes without a bounce buffer, whatever the host's
// devices ask for.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "block/result.h"

namespace spindle::image {

class AlignedBuffer {
 public:
  static constexpr std::size_t kAlignment = 4096;

  AlignedBuffer() = default;
  /// `size` bytes of no particular content, at least one. NoSpace if the host has no memory for it.
  static Result<AlignedBuffer> allocate(uint64_t size);

  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {memory_.get(), size_}; }
  /// Part of it, as a request names memory. Lies inside.
  iovec part(std::size_t offset, std::size_t length) const { return {memory_.get() + offset, length}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace spindle::image
