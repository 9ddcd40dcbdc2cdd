#include "block/io/frame_pool.h"

#include <array>
#include <new>

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
namespace {

constexpr std::size_t kClassBytes = 64;
constexpr std::size_t kClasses = 32;  // up to 2 KiB; larger frames go to the heap

struct FreeFrame {
  FreeFrame* next;
};

struct FreeLists {
  std::array<FreeFrame*, kClasses> heads{};
  ~FreeLists() {
    for (FreeFrame*& head : heads) {  // left empty: frames may still come and go while a thread ends
      while (FreeFrame* frame = head) {
        head = frame->next;
        ::operator delete(frame);
      }
    }
  }
};

thread_local FreeLists lists;

}  // namespace

void* FramePool::allocate(std::size_t size) {
  const std::size_t index = (size - 1) / kClassBytes;
  if (!SPINDLE_POOL_FRAMES || index >= kClasses) return ::operator new(size);
  FreeFrame*& head = lists.heads[index];
  if (!head) return ::operator new((index + 1) * kClassBytes);
  FreeFrame* frame = head;
  head = frame->next;
  return frame;
}

void FramePool::release(void* frame, std::size_t size) noexcept {
  const std::size_t index = (size - 1) / kClassBytes;
  if (!SPINDLE_POOL_FRAMES || index >= kClasses) {
    ::operator delete(frame);
    return;
  }
  auto* free_frame = static_cast<FreeFrame*>(frame);
  free_frame->next = lists.heads[index];
  lists.heads[index] = free_frame;
}

}  // namespace spindle
