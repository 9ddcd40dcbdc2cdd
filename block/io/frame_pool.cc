#include "block/io/frame_pool.h"

#include <new>

namespace spindle {

// The lists are left empty, not unusable: frames may still come and go while a thread ends.
struct FramePool::Cleaner {
  void arm() const {}
  ~Cleaner() {
    for (FreeFrame*& head : heads_) {
      while (FreeFrame* frame = head) {
        head = frame->next;
        ::operator delete(frame);
      }
    }
  }
};

void* FramePool::allocate_fresh(std::size_t size) {
  const std::size_t index = (size - 1) / kClassBytes;
  if (!SPINDLE_POOL_FRAMES || index >= kClasses) return ::operator new(size);
  return ::operator new((index + 1) * kClassBytes);
}

void FramePool::arm_cleaner() {
  static thread_local Cleaner cleaner;
  cleaner.arm();
}

}  // namespace spindle
