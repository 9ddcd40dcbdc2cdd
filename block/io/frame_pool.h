// Where coroutine frames come from: per-thread free lists, one per 64-byte size class.
//
// Frames are allocated and freed on their reactor's thread, so no lock is needed; a frame freed on another
// thread merely moves to that thread's list. Memory stays bounded by the largest number of frames that ever
// lived at once. Under AddressSanitizer the pool steps aside, so that a use after the end of a request is
// seen.
#pragma once

#include <cstddef>

namespace spindle {

class FramePool {
 public:
  static void* allocate(std::size_t size);
  static void release(void* frame, std::size_t size) noexcept;
};

}  // namespace spindle
