// file: the protocol node over a regular file or a block device of the host, on io_uring.
//
// Durability: never O_SYNC or O_DSYNC, in any cache mode (D2). A flush is one fdatasync, submitted when it is
// called, after the completions it covers were reaped; nothing is ordered by link or drain flags (D5). FUA is
// RWF_DSYNC. With never_flush (cache=unsafe) neither reaches the host.
//
// Failure: errors come back as the host gave them. The kernel tells each open file of a write-back error
// once; so FUA goes through an open file of its own, and a flush can never miss an error because a FUA write
// has heard of it. A write with RWF_DSYNC that fails for lack of space does not say whether the write found
// none or the sync did, and to try again does not tell either, since space may have come back meanwhile. So a
// third open file, which nothing else asks, is asked whether a write-back failed since the image was opened:
// if none did it was an ordinary request error (NoSpace), else it is FlushFailed (D6).
//
// Short transfers are resubmitted; EINTR and EAGAIN are tried again. What a file that shrank under us no
// longer has reads as zeroes. A write that makes no progress is an error.
//
// O_DIRECT: what is aligned goes directly from the guest's memory. The rest goes through bounce buffers
// (bounce_pool.h has the bound), its first and last block by read-modify-write, under an exclusive hold of
// the range (range_lock.h). If the file's size is no multiple of the block, its last, partial block is
// written through a second descriptor without O_DIRECT, so that no write ever makes the file longer. That
// goes through the page cache, by whole pages: the kernel reads, and later writes back, the neighbours of
// those bytes too. A direct write of a neighbour in flight meanwhile could be undone by that; Linux sees the
// danger and lets the next fdatasync fail with EIO. So such a write has the whole file to itself: how far a
// page reaches is the kernel's choice (large folios, large blocks), and the last bytes of an odd file are
// written rarely. Direct requests that come later find the page dirty and write it out first by themselves.
//
// Growing: resize holds everything from the smaller of the two sizes on exclusively: it waits for the writes
// in flight there and new ones wait for it.
//
// Layout: file_node.cc opens, flushes, maps and resizes; file_transfer.cc reads and writes; file_space.cc
// zeroes and discards. lseek and ftruncate are blocking calls on the reactor's thread: there is nothing
// better for the first, and the second is rare.
//
// The file is registered with the ring, which spares the kernel a look-up for each operation: measured, a
// tenth of a cached 4 KiB read.
//
// Threading: the node's reactor only, which outlives the node.
#pragma once

#include <sys/uio.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "block/node.h"
#include "block/protocols/bounce_pool.h"
#include "block/protocols/file_lock.h"
#include "block/protocols/range_lock.h"

namespace spindle {

class FileNode final : public Node {
 public:
  struct Options {
    std::string path;
    bool read_only = false;
    bool direct = false;       ///< O_DIRECT
    bool never_flush = false;  ///< cache=unsafe: flush() and FUA succeed without asking the host
    /// D6: drop what the page cache holds of the file. After a failed flush, be it of a process that is gone,
    /// the kernel shows pages as clean that never reached the medium.
    bool drop_cache = false;
    bool grows = false;  ///< the format above resizes its file: lock that permission too
    LockPolicy locking = LockPolicy::Auto;
    std::function<void(std::string)> warn = {};  ///< told, in one line each, what the user should know
  };

  /// Opens and locks. Blocks. NotFound, Permission, ReadOnly, InUse, Invalid (no image can be in it) and
  /// others say what to do about them.
  static Result<std::shared_ptr<FileNode>> open(Reactor& reactor, Options options);
  ~FileNode() override;

  const NodeFacts& facts() const override { return facts_; }
  uint64_t size() const override { return size_; }
  Task<Result<>> read(uint64_t offset, Buffers buffers) override;
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override;
  /// Regular file: punches or zeroes the range, keeping space allocated without `unmap`. See file_space.cc
  /// for what is tried when the file system cannot.
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override;
  Task<Result<>> discard(uint64_t offset, uint64_t length) override;
  Task<Result<>> flush() override;
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override;
  /// A block device can only be "resized" to the size it has.
  Task<Result<>> resize(uint64_t size) override;
  Task<Result<>> close() override;

  /// One for each operation submitted to the host, so a resubmitted rest counts again. FUA counts as the
  /// write it is.
  const ProtocolCounters* protocol_counters() const override { return &counters_; }
  const Options& options() const { return options_; }
  /// The open file, for tests that look at its flags; -1 once closed.
  int fd() const { return fd_; }

 private:
  FileNode(Reactor& reactor, Options options, int fd);

  Result<> setup();
  Result<> open_tail();
  Error error_of(int negative_errno, const char* operation, uint64_t offset) const;
  bool aligned_request(uint64_t offset, uint64_t length) const {
    return ((offset | length) & (facts_.request_alignment - 1)) == 0;
  }
  bool aligned_memory(const iovec& part) const {
    return (reinterpret_cast<uintptr_t>(part.iov_base) & (facts_.memory_alignment - 1)) == 0 &&
           (part.iov_len & (facts_.request_alignment - 1)) == 0;
  }
  /// True if `buffers` at `offset` can go to the kernel as they are.
  bool passes(uint64_t offset, const Buffers& buffers) const;

  // file_transfer.cc
  Task<Result<>> read_at_once(uint64_t offset, Buffers buffers);
  Task<Result<>> read_rest(uint64_t offset, Buffers buffers, uint64_t done);
  Task<Result<>> read_bounced(uint64_t offset, Buffers buffers, uint64_t done);
  Task<Result<>> read_flat(uint64_t offset, std::byte* memory, uint64_t length);
  Task<Result<>> write_otherwise(uint64_t offset, Buffers buffers, bool fua);
  Task<Result<>> write_any(uint64_t offset, Buffers buffers, int rw_flags);
  Task<Result<>> write_fua(uint64_t offset, Buffers buffers);
  Task<Result<>> write_rest(int fd, uint64_t offset, Buffers buffers, uint64_t position, uint64_t done,
                            uint64_t length, int rw_flags);
  Task<Result<>> write_bounced(uint64_t offset, Buffers buffers, int rw_flags);
  Task<Result<>> write_piece(uint64_t offset, Buffers buffers, uint64_t position, uint64_t length,
                             int rw_flags);
  Task<bool> again(int result, unsigned& attempts);
  int fd_for(int rw_flags) const { return rw_flags & RWF_DSYNC ? fua_fd_ : fd_; }
  uint64_t down(uint64_t offset) const { return offset & ~uint64_t{facts_.request_alignment - 1}; }
  uint64_t up(uint64_t offset) const { return down(offset + facts_.request_alignment - 1); }
  /// What a write of any kind must hold. `offset + length` does not overflow.
  RangeLock::Hold hold_for(uint64_t offset, uint64_t length);

  // file_space.cc
  Task<Result<>> zero_range(uint64_t offset, uint64_t length, ZeroFlags flags);
  Task<Result<>> zero_whole_blocks(uint64_t offset, uint64_t length, ZeroFlags flags);
  Task<Result<>> write_zero_buffers(uint64_t offset, uint64_t length);
  Task<Result<>> fallocate(int mode, uint64_t offset, uint64_t length, const char* operation);

  Task<Result<>> datasync(int fd);

  /// Points a prepared operation that names fd_ to its slot.
  void by_slot(io_uring_sqe* sqe) const {
    if (slot_ < 0) return;
    sqe->fd = slot_;
    sqe->flags |= IOSQE_FIXED_FILE;
  }
  void unregister();

  Options options_;
  int fd_;
  int slot_ = -1;  // of fd_ in the ring's table of files, where it has one
  // Holds the locks, by an open file of its own: the ring may let go of a registered file only some time
  // after the process is gone, and the image would seem in use until then.
  int lock_fd_ = -1;
  int fua_fd_ = -1;      // as fd_, for writes that sync by themselves
  int witness_fd_ = -1;  // only asked after such a write has found no space
  int tail_fd_ = -1;     // without O_DIRECT; open while the size is no multiple of the alignment
  uint64_t size_ = 0;
  unsigned resizing_ = 0;  // resizes waiting or under way
  bool block_device_ = false;
  NodeFacts facts_;
  ProtocolCounters counters_;
  RangeLock ranges_;
  BouncePool bounce_;
  // What the file system turned out to do; not tried again once it said no.
  bool can_punch_ = true;
  bool can_zero_range_ = true;
  bool can_allocate_ = true;
  bool can_dsync_ = true;
};

}  // namespace spindle
