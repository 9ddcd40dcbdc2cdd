// How the file node zeroes and discards, through fallocate, and what it does where the file system cannot.
// Each "cannot" is remembered, so it is asked once.
//
//   write_zeroes with unmap      punch a hole; else as without
//   write_zeroes without unmap   zero the range in place; else punch and allocate again (the range reads as
//   zeroes
//                                from the punch on, so a failure between the two leaves nothing wrong)
//   then, either                 NotSupported with no_fallback, else zero buffers, in pieces of one shared
//   buffer
//
// A block device takes fallocate for whole blocks only; its partial first and last block are written. Its
// kernel may serve "zero the range" by writing zeroes itself, which no_fallback forbids, so there only the
// punch is left.
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "block/protocols/file_node.h"

namespace spindle {
namespace {

constexpr std::size_t kZeroBytes = 256 << 10;
constexpr std::size_t kZeroParts = 16;  // 4 MiB a write

// Zeroes to write from, for the whole process. A read-only anonymous mapping is backed by the kernel's zero
// page.
std::byte* zero_buffer() {
  static std::byte* const memory = [] {
    void* mapped = ::mmap(nullptr, kZeroBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
  }();
  return memory;
}

// EINVAL from fallocate is what some file systems and devices say instead of EOPNOTSUPP; with arguments that
// are right otherwise it means the same.
bool says_cannot(const Result<>& result) {
  if (result) return false;
  return result.error()->kind == ErrorKind::NotSupported || result.error()->number == EINVAL ||
         result.error()->number == ENODEV;
}

}  // namespace

Task<Result<>> FileNode::fallocate(int mode, uint64_t offset, uint64_t length, const char* operation) {
  int result;
  do {
    ++counters_.fallocates;
    result = co_await reactor().submit([&](io_uring_sqe* sqe) {
      io_uring_prep_fallocate(sqe, fd_, mode, static_cast<off_t>(offset), static_cast<off_t>(length));
      by_slot(sqe);
    });
  } while (result == -EINTR);
  if (result < 0) co_return std::unexpected(error_of(result, operation, offset));
  co_return Result<>{};
}

Task<Result<>> FileNode::write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) {
  constexpr uint64_t kLargestOffset = std::numeric_limits<off_t>::max();
  if (offset > kLargestOffset || length > kLargestOffset - offset) {
    co_return check_range("write_zeroes", offset, length);
  }
  RangeLock::Hold hold = hold_for(offset, length);
  co_await hold;
  SPINDLE_CO_TRY(check_range("write_zeroes", offset, length));
  if (options_.read_only) co_return std::unexpected(error_of(-EROFS, "write_zeroes", offset));
  if (length == 0) co_return Result<>{};
  auto result = co_await zero_range(offset, length, flags);
  if (!result || !flags.fua || options_.never_flush) co_return result;
  result = co_await datasync(fua_fd_);
  if (!result) result.error()->kind = ErrorKind::FlushFailed;
  co_return result;
}

Task<Result<>> FileNode::zero_range(uint64_t offset, uint64_t length, ZeroFlags flags) {
  uint64_t begin = offset;
  uint64_t end = offset + length;
  if (block_device_) {
    int block = 0;
    if (::ioctl(fd_, BLKSSZGET, &block) != 0 || block <= 0) block = 512;
    const auto mask = static_cast<uint64_t>(block) - 1;
    begin = std::min((begin + mask) & ~mask, end);
    end = std::max(end & ~mask, begin);
  }
  Result<> result = std::unexpected(error_of(-EOPNOTSUPP, "write_zeroes", offset));
  if (begin < end) result = co_await zero_whole_blocks(begin, end - begin, flags);
  if (!result) {
    if (!says_cannot(result)) co_return result;
    if (flags.no_fallback) {
      co_return std::unexpected(error_of(-EOPNOTSUPP, "write_zeroes", offset));
    }
    co_return co_await write_zero_buffers(offset, length);
  }
  if (offset < begin) result = co_await write_zero_buffers(offset, begin - offset);
  if (result && end < offset + length) result = co_await write_zero_buffers(end, offset + length - end);
  co_return result;
}

Task<Result<>> FileNode::zero_whole_blocks(uint64_t offset, uint64_t length, ZeroFlags flags) {
  constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  constexpr int kZero = FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE;
  if (flags.unmap && can_punch_) {
    auto result = co_await fallocate(kPunch, offset, length, "write_zeroes");
    if (!says_cannot(result)) co_return result;
    can_punch_ = false;
  }
  if (can_zero_range_ && !(block_device_ && flags.no_fallback)) {
    auto result = co_await fallocate(kZero, offset, length, "write_zeroes");
    if (!says_cannot(result)) co_return result;
    can_zero_range_ = false;
  }
  // Not on a block device: there is no space to be allocated, and a punch that is no zeroing would come
  // first.
  if (!block_device_ && can_punch_ && can_allocate_) {
    auto result = co_await fallocate(kPunch, offset, length, "write_zeroes");
    if (says_cannot(result)) {
      can_punch_ = false;
    } else {
      if (!result) co_return result;
      result = co_await fallocate(FALLOC_FL_KEEP_SIZE, offset, length, "write_zeroes");
      if (!says_cannot(result)) co_return result;
      can_allocate_ = false;
    }
  }
  co_return std::unexpected(error_of(-EOPNOTSUPP, "write_zeroes", offset));
}

Task<Result<>> FileNode::write_zero_buffers(uint64_t offset, uint64_t length) {
  std::byte* const zeroes = zero_buffer();
  if (!zeroes) co_return std::unexpected(error_of(-ENOMEM, "write_zeroes", offset));
  uint64_t done = 0;
  while (done < length) {
    std::array<iovec, kZeroParts> parts;
    std::size_t count = 0;
    uint64_t total = 0;
    while (count < kZeroParts && done + total < length) {
      const uint64_t run = std::min<uint64_t>(kZeroBytes, length - done - total);
      parts[count++] = iovec{zeroes, run};
      total += run;
    }
    const Buffers buffers(std::span(parts.data(), count), total);
    auto result = co_await write_any(offset + done, buffers, 0);
    if (!result) co_return result;
    done += total;
  }
  co_return Result<>{};
}

Task<Result<>> FileNode::discard(uint64_t offset, uint64_t length) {
  constexpr uint64_t kLargestOffset = std::numeric_limits<off_t>::max();
  if (offset > kLargestOffset || length > kLargestOffset - offset) {
    co_return check_range("discard", offset, length);
  }
  // Whole granules only, so this is never partial: it shares.
  RangeLock::Hold hold(ranges_, down(offset), up(offset + length), RangeLock::Mode::Shared);
  co_await hold;
  SPINDLE_CO_TRY(check_range("discard", offset, length));
  if (options_.read_only) co_return std::unexpected(error_of(-EROFS, "discard", offset));
  const uint64_t granule = facts_.discard_granularity;
  const uint64_t begin = (offset + granule - 1) / granule * granule;
  const uint64_t end = (offset + length) / granule * granule;
  if (!can_punch_ || begin >= end) co_return Result<>{};
  auto result = co_await fallocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end - begin, "discard");
  if (says_cannot(result)) {
    can_punch_ = false;
    co_return Result<>{};
  }
  co_return result;
}

}  // namespace spindle
