// Where coroutine frames come from: per-thread free lists, one per 64-byte size class.
//
// Frames are allocated and freed on their reactor's thread, so no lock is needed; a frame freed on another
// thread merely moves to that thread's list. Memory stays bounded by the largest number of frames that ever
// lived at once. Under AddressSanitizer the pool steps aside, so that a use after the end of a request is
// seen.
#pragma once

#include <array>
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define SPINDLE_POOL_FRAMES 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SPINDLE_POOL_FRAMES 0
#endif
#endif
#ifndef SPINDLE_POOL_FRAMES
#define SPINDLE_POOL_FRAMES 1
#endif

namespace spindle {

class FramePool {
 public:
  static void* allocate(std::size_t size) {
    const std::size_t index = (size - 1) / kClassBytes;
    if (!SPINDLE_POOL_FRAMES || index >= kClasses || !heads_[index]) return allocate_fresh(size);
    FreeFrame* frame = heads_[index];
    heads_[index] = frame->next;
    return frame;
  }
  static void release(void* memory, std::size_t size) noexcept {
    const std::size_t index = (size - 1) / kClassBytes;
    if (!SPINDLE_POOL_FRAMES || index >= kClasses) {
      ::operator delete(memory);
      return;
    }
    auto* frame = static_cast<FreeFrame*>(memory);
    if (!heads_[index]) arm_cleaner();  // this thread may only ever free
    frame->next = heads_[index];
    heads_[index] = frame;
  }

 private:
  static constexpr std::size_t kClassBytes = 64;
  static constexpr std::size_t kClasses = 32;  // up to 2 KiB; larger frames go to the heap

  struct FreeFrame {
    FreeFrame* next;
  };
  struct Cleaner;

  static void* allocate_fresh(std::size_t size);
  static void arm_cleaner();

  // Without a destructor, so that reaching it is one instruction; Cleaner empties it when the thread ends.
  static constinit thread_local std::array<FreeFrame*, kClasses> heads_;
};

inline constinit thread_local std::array<FramePool::FreeFrame*, FramePool::kClasses> FramePool::heads_{};

}  // namespace spindle
