// How the file node reads and writes. read() and write() are the fast path: one frame, one submission,
// straight from the guest's memory. All that is not so simple goes on in the functions below them: more parts
// than the kernel takes, rests of short transfers, and O_DIRECT with what is not aligned.
#include <fmt/format.h>
#include <limits.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>

#include "block/protocols/file_node.h"
#include "block/protocols/file_probe.h"

namespace spindle {
namespace {

constexpr std::size_t kMaxParts = IOV_MAX;
// What one operation moves at most: io_uring copies what is in the page cache on the reactor's own thread,
// and other disks wait meanwhile. A multiple of every alignment.
constexpr uint64_t kMaxTransfer = 4ull << 20;
constexpr uint64_t kLargestOffset = std::numeric_limits<off_t>::max();

bool overflows(uint64_t offset, uint64_t length) {
  return offset > kLargestOffset || length > kLargestOffset - offset;
}

// Small enough, and not empty: one submission does it, if it is not cut short.
bool one_operation(const Buffers& buffers) {
  return buffers.parts.size() <= kMaxParts && buffers.size <= kMaxTransfer && buffers.size != 0;
}

}  // namespace

bool FileNode::passes(uint64_t offset, const Buffers& buffers) const {
  if (facts_.request_alignment == 1 && facts_.memory_alignment == 1) return true;
  if (!aligned_request(offset, buffers.size)) return false;
  for (const iovec& part : buffers.parts) {
    if (!aligned_memory(part)) return false;
  }
  return true;
}

RangeLock::Hold FileNode::hold_for(uint64_t offset, uint64_t length) {
  const uint64_t end = offset + length;
  if (aligned_request(offset, length)) return {ranges_, offset, end, RangeLock::Mode::Shared};
  // A resize that is waiting or under way may put the partial block anywhere; one that comes later waits for
  // this.
  if (end > down(size_) || resizing_ != 0) {
    return {ranges_, 0, std::numeric_limits<uint64_t>::max(), RangeLock::Mode::Exclusive};
  }
  return {ranges_, down(offset), up(end), RangeLock::Mode::Exclusive};
}

// EINTR and EAGAIN: nothing was done, and nothing is wrong yet. The first retries are immediate; a host that
// goes on to say EAGAIN gets a millisecond between them, and after about a second the error stands.
Task<bool> FileNode::again(int result, unsigned& attempts) {
  if (result != -EINTR && result != -EAGAIN) co_return false;
  if (++attempts > 1000) co_return false;
  if (attempts < 16) {
    co_await reactor().yield();
  } else {
    co_await reactor().sleep(std::chrono::milliseconds(1));
  }
  co_return true;
}

Task<Result<>> FileNode::read(uint64_t offset, Buffers buffers) {
  if (auto inside = check_range("read", offset, buffers.size); !inside) return finished(std::move(inside));
  if (!passes(offset, buffers)) return read_bounced(offset, buffers, 0);
  if (!one_operation(buffers)) return read_rest(offset, buffers, 0);
  return read_at_once(offset, buffers);
}

Task<Result<>> FileNode::read_at_once(uint64_t offset, Buffers buffers) {
  ++counters_.reads;
  const int result = co_await reactor().submit([&](io_uring_sqe* sqe) {
    if (buffers.parts.size() == 1) {
      io_uring_prep_read(sqe, fd_, buffers.parts[0].iov_base, static_cast<unsigned>(buffers.size), offset);
    } else {
      io_uring_prep_readv(sqe, fd_, buffers.parts.data(), static_cast<unsigned>(buffers.parts.size()),
                          offset);
    }
    by_slot(sqe);
  });
  if (result == static_cast<int>(buffers.size)) [[likely]]
    co_return Result<>{};
  if (result < 0 && result != -EINTR && result != -EAGAIN) {
    co_return std::unexpected(error_of(result, "read", offset));
  }
  if (result == 0) {  // the file ends before `offset` now
    zero_in(buffers, 0, buffers.size);
    co_return Result<>{};
  }
  co_return co_await read_rest(offset, buffers, result > 0 ? static_cast<uint64_t>(result) : 0);
}

// Goes on after the first `done` bytes.
Task<Result<>> FileNode::read_rest(uint64_t offset, Buffers buffers, uint64_t done) {
  std::vector<iovec> parts;
  unsigned attempts = 0;
  while (done < buffers.size) {
    // A direct transfer that stopped inside a block has met the end of the file, or will by way of a bounce
    // buffer.
    if (!aligned_request(offset + done, 0)) co_return co_await read_bounced(offset, buffers, done);
    slice(buffers, done, std::min(kMaxTransfer, buffers.size - done), kMaxParts, parts);
    ++counters_.reads;
    const int result = co_await reactor().submit([&](io_uring_sqe* sqe) {
      io_uring_prep_readv(sqe, fd_, parts.data(), static_cast<unsigned>(parts.size()), offset + done);
      by_slot(sqe);
    });
    if (result < 0) {
      if (co_await again(result, attempts)) continue;
      co_return std::unexpected(error_of(result, "read", offset + done));
    }
    if (result == 0) {
      zero_in(buffers, done, buffers.size - done);
      co_return Result<>{};
    }
    done += static_cast<uint64_t>(result);
  }
  co_return Result<>{};
}

// Reads whole blocks into a bounce buffer and copies what was asked for.
Task<Result<>> FileNode::read_bounced(uint64_t offset, Buffers buffers, uint64_t done) {
  while (done < buffers.size) {
    const uint64_t from = offset + done;
    const uint64_t begin = down(from);
    const uint64_t length = std::min(buffers.size - done, BouncePool::kBufferBytes - (from - begin));
    BouncePool::Buffer bounce(bounce_);
    co_await bounce;
    if (!bounce.data()) co_return std::unexpected(error_of(-ENOMEM, "read", from));
    auto result = co_await read_flat(begin, bounce.data(), up(from + length) - begin);
    if (!result) co_return result;
    copy_to(buffers, done, bounce.data() + (from - begin), length);
    done += length;
  }
  co_return Result<>{};
}

// Reads [offset, offset + length), whole blocks into aligned memory; zeroes beyond the end of the file.
Task<Result<>> FileNode::read_flat(uint64_t offset, std::byte* memory, uint64_t length) {
  uint64_t done = 0;
  unsigned attempts = 0;
  while (done < length) {
    ++counters_.reads;
    const int result = co_await reactor().submit([&](io_uring_sqe* sqe) {
      io_uring_prep_read(sqe, fd_, memory + done, static_cast<unsigned>(length - done), offset + done);
      by_slot(sqe);
    });
    if (result < 0) {
      if (co_await again(result, attempts)) continue;
      co_return std::unexpected(error_of(result, "read", offset + done));
    }
    done += static_cast<uint64_t>(result);
    if (result != 0 && aligned_request(done, 0)) continue;
    // The end of the file, and nothing else, ends a direct read inside a block.
    auto end = size_of_file(fd_, block_device_, options_.path);
    if (!end) co_return std::unexpected(std::move(end.error()));
    if (result != 0 && offset + done < *end) {
      Error error = error_of(-EIO, "read", offset + done);
      error.detail = "the host ended a direct read inside a block";
      co_return std::unexpected(std::move(error));
    }
    std::memset(memory + done, 0, length - done);
    done = length;
  }
  co_return Result<>{};
}

Task<Result<>> FileNode::write(uint64_t offset, Buffers buffers, WriteFlags flags) {
  if (overflows(offset, buffers.size)) co_return check_range("write", offset, buffers.size);
  // The place in the order comes before the look at the size: a growth under way is waited for.
  RangeLock::Hold hold = hold_for(offset, buffers.size);
  co_await hold;
  const bool fua = flags.fua && !options_.never_flush;
  if (options_.read_only || fua || !one_operation(buffers) || !passes(offset, buffers) ||
      !check_range("write", offset, buffers.size)) {
    co_return co_await write_otherwise(offset, buffers, fua);
  }
  ++counters_.writes;
  const int result = co_await reactor().submit([&](io_uring_sqe* sqe) {
    if (buffers.parts.size() == 1) {
      io_uring_prep_write(sqe, fd_, buffers.parts[0].iov_base, static_cast<unsigned>(buffers.size), offset);
    } else {
      io_uring_prep_writev(sqe, fd_, buffers.parts.data(), static_cast<unsigned>(buffers.parts.size()),
                           offset);
    }
    by_slot(sqe);
  });
  if (result == static_cast<int>(buffers.size)) [[likely]]
    co_return Result<>{};
  if (result < 0 && result != -EINTR && result != -EAGAIN) {
    co_return std::unexpected(error_of(result, "write", offset));
  }
  const uint64_t done = result > 0 ? static_cast<uint64_t>(result) : 0;
  co_return co_await write_rest(fd_, offset, buffers, 0, done, buffers.size, 0);
}

Task<Result<>> FileNode::write_otherwise(uint64_t offset, Buffers buffers, bool fua) {
  if (auto inside = check_range("write", offset, buffers.size); !inside) return finished(std::move(inside));
  if (options_.read_only) {
    return finished(Result<>(std::unexpected(error_of(-EROFS, "write", offset))));
  }
  if (buffers.size == 0) return finished(Result<>{});
  return fua ? write_fua(offset, buffers) : write_any(offset, buffers, 0);
}

// One write on any path. The caller holds the range.
Task<Result<>> FileNode::write_any(uint64_t offset, Buffers buffers, int rw_flags) {
  if (!passes(offset, buffers)) co_return co_await write_bounced(offset, buffers, rw_flags);
  co_return co_await write_rest(fd_for(rw_flags), offset, buffers, 0, 0, buffers.size, rw_flags);
}

Task<Result<>> FileNode::write_fua(uint64_t offset, Buffers buffers) {
  Result<> result;
  if (can_dsync_) {
    result = co_await write_any(offset, buffers, RWF_DSYNC);
    if (result) co_return result;
    if (result.error()->kind == ErrorKind::NoSpace) {
      // Not fd_: a flush that runs there at the same time would miss the error that this one is told.
      auto synced = co_await datasync(witness_fd_);
      if (synced) co_return result;
      synced.error()->kind = ErrorKind::FlushFailed;
      co_return synced;
    }
    if (result.error()->kind != ErrorKind::NotSupported) co_return result;
    can_dsync_ = false;
  }
  result = co_await write_any(offset, buffers, 0);
  if (!result) co_return result;
  result = co_await datasync(fua_fd_);
  if (!result) result.error()->kind = ErrorKind::FlushFailed;
  co_return result;
}

// Writes the bytes [position + done, position + length) of `buffers` to `offset` + done and on.
Task<Result<>> FileNode::write_rest(int fd, uint64_t offset, Buffers buffers, uint64_t position,
                                    uint64_t done, uint64_t length, int rw_flags) {
  std::vector<iovec> parts;
  unsigned attempts = 0;
  while (done < length) {
    slice(buffers, position + done, std::min(kMaxTransfer, length - done), kMaxParts, parts);
    ++counters_.writes;
    const int result = co_await reactor().submit([&](io_uring_sqe* sqe) {
      io_uring_prep_writev2(sqe, fd, parts.data(), static_cast<unsigned>(parts.size()), offset + done,
                            rw_flags);
      if (fd == fd_) by_slot(sqe);
    });
    if (result < 0) {
      if (co_await again(result, attempts)) continue;
      co_return std::unexpected(error_of(result, "write", offset + done));
    }
    if (result == 0) {
      Error error = error_of(-EIO, "write", offset + done);
      error.detail = "the host accepts no more bytes and names no reason";
      co_return std::unexpected(std::move(error));
    }
    const uint64_t reached = done + static_cast<uint64_t>(result);
    // A direct write that stopped inside a block can only go on from the block's start.
    const uint64_t next = fd == tail_fd_ || reached == length ? reached : down(offset + reached) - offset;
    if (next <= done && reached < length && ++attempts > 1000) {
      co_return std::unexpected(error_of(-EIO, "write", offset + done));
    }
    done = std::max(done, next);
  }
  co_return Result<>{};
}

// O_DIRECT with what is not aligned: in pieces of at most one bounce buffer. What reaches into the file's
// last, partial block goes through the descriptor without O_DIRECT as it is.
Task<Result<>> FileNode::write_bounced(uint64_t offset, Buffers buffers, int rw_flags) {
  const uint64_t whole_blocks = down(size_);
  uint64_t position = 0;
  while (position < buffers.size) {
    const uint64_t from = offset + position;
    uint64_t length = buffers.size - position;
    if (from >= whole_blocks) {
      co_return co_await write_rest(tail_fd_, from, buffers, position, 0, length, rw_flags);
    }
    length = std::min({length, BouncePool::kBufferBytes - (from - down(from)), whole_blocks - from});
    auto result = co_await write_piece(from, buffers, position, length, rw_flags);
    if (!result) co_return result;
    position += length;
  }
  co_return Result<>{};
}

// One piece by read-modify-write of its first and last block. The caller holds the range exclusively if any
// of them is partial.
Task<Result<>> FileNode::write_piece(uint64_t offset, Buffers buffers, uint64_t position, uint64_t length,
                                     int rw_flags) {
  const uint64_t begin = down(offset);
  const uint64_t end = up(offset + length);
  const uint64_t block = facts_.request_alignment;
  BouncePool::Buffer bounce(bounce_);
  co_await bounce;
  std::byte* memory = bounce.data();
  if (!memory) co_return std::unexpected(error_of(-ENOMEM, "write", offset));
  const bool head = offset != begin;
  const bool tail = offset + length != end;
  if (head || (tail && end - begin == block)) {
    auto result = co_await read_flat(begin, memory, block);
    if (!result) co_return result;
  }
  if (tail && end - begin > block) {
    auto result = co_await read_flat(end - block, memory + (end - block - begin), block);
    if (!result) co_return result;
  }
  copy_from(buffers, position, memory + (offset - begin), length);
  const iovec part{memory, end - begin};
  const Buffers flat(std::span(&part, 1), part.iov_len);
  co_return co_await write_rest(fd_for(rw_flags), begin, flat, 0, 0, flat.size, rw_flags);
}

}  // namespace spindle
