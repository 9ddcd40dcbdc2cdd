#include "block/protocols/bounce_pool.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace spindle {
namespace {

constexpr std::size_t kPage = 4096;

// Calls `visit(memory, length)` for each run of memory of [position, position + length) in `buffers`.
template <typename Visit>
void each_run(const Buffers& buffers, uint64_t position, uint64_t length, Visit visit) {
  for (const iovec& part : buffers.parts) {
    if (length == 0) return;
    if (position >= part.iov_len) {
      position -= part.iov_len;
      continue;
    }
    const uint64_t run = std::min<uint64_t>(part.iov_len - position, length);
    if (!visit(static_cast<std::byte*>(part.iov_base) + position, run)) return;
    position = 0;
    length -= run;
  }
}

}  // namespace

BouncePool::~BouncePool() {
  for (std::byte* buffer : free_) std::free(buffer);
}

std::byte* BouncePool::try_take() {
  if (!waiters_.empty()) return nullptr;  // they came first
  if (!free_.empty()) {
    std::byte* buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  if (allocated_ == kBuffers) return nullptr;
  auto* buffer = static_cast<std::byte*>(std::aligned_alloc(kPage, kBufferBytes));
  if (buffer) ++allocated_;
  return buffer;
}

BouncePool::Buffer::~Buffer() {
  if (!data_) return;
  if (pool_.waiters_.empty()) {
    pool_.free_.push_back(data_);
    return;
  }
  const Waiter next = pool_.waiters_.front();
  pool_.waiters_.pop_front();
  next.buffer->data_ = data_;  // handed over before it could be taken by a newcomer
  pool_.reactor_.schedule(next.handle);
}

void copy_from(const Buffers& buffers, uint64_t position, std::byte* flat, std::size_t length) {
  each_run(buffers, position, length, [&flat](std::byte* memory, uint64_t run) {
    std::memcpy(flat, memory, run);
    flat += run;
    return true;
  });
}

void copy_to(const Buffers& buffers, uint64_t position, const std::byte* flat, std::size_t length) {
  each_run(buffers, position, length, [&flat](std::byte* memory, uint64_t run) {
    std::memcpy(memory, flat, run);
    flat += run;
    return true;
  });
}

void zero_in(const Buffers& buffers, uint64_t position, uint64_t length) {
  each_run(buffers, position, length, [](std::byte* memory, uint64_t run) {
    std::memset(memory, 0, run);
    return true;
  });
}

uint64_t slice(const Buffers& buffers, uint64_t position, uint64_t length, std::size_t max_parts,
               std::vector<iovec>& parts) {
  parts.clear();
  uint64_t total = 0;
  each_run(buffers, position, length, [&](std::byte* memory, uint64_t run) {
    parts.push_back({memory, run});
    total += run;
    return parts.size() < max_parts;
  });
  return total;
}

}  // namespace spindle
