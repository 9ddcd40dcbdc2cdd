// Node: one layer of a disk's graph. A format maps guest offsets to file offsets; a protocol reaches the
// host; a filter sits anywhere and changes how requests pass.
//
// Contract for whoever calls a node:
// - All offsets and lengths are bytes. Callers guarantee that ranges lie inside size(); a node must not crash
// for any
//   range and answers one outside with ErrorKind::Invalid. Alignment is the node's business:
//   facts().request_alignment only says what is cheap.
// - Buffers, and the iovec array that names them, live until the operation has returned.
// - Operations may run concurrently. Nothing orders two that are in flight together; a flush covers those
// that had
//   returned before it was started.
// - A range may be checked when an operation is called already, not only when its task is awaited. Who lets
// time pass, calls after it.
// - Everything runs on the reactor the graph was opened on.
//
// Contract for durability: a completed write, write_zeroes or discard is readable at once and durable only
// after a flush that started later has succeeded, or at once if `fua` was given. A node that cannot do `fua`
// says so in its facts and answers NotSupported; Disk then flushes instead. Which flush is needed and which
// may be skipped is decided by the node's FlushSequencer (flush_sequencer.h), not by the node.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "block/flush_sequencer.h"
#include "block/io/reactor.h"
#include "block/io/task.h"
#include "block/result.h"

namespace spindle {

/// Scattered memory of a request, with its total. Names memory, owns none.
struct Buffers {
  std::span<const iovec> parts;
  uint64_t size = 0;

  Buffers() = default;
  explicit Buffers(std::span<const iovec> iovecs);
  Buffers(std::span<const iovec> iovecs, uint64_t total) : parts(iovecs), size(total) {}
};

struct WriteFlags {
  bool fua = false;  ///< durable when it returns
  /// The format may store it compressed. Whole clusters that were never written, and the disk's end.
  bool compressed = false;
};

struct ZeroFlags {
  bool unmap = false;        ///< the space may be given back to the host
  bool no_fallback = false;  ///< answer NotSupported rather than write zero buffers
  bool fua = false;
};

/// One run of map(): [offset, offset + length) is all of one status.
struct Extent {
  uint64_t offset = 0;
  uint64_t length = 0;
  bool data = false;                    ///< allocated in this layer or below it
  bool zero = false;                    ///< reads as zeroes
  std::optional<uint64_t> file_offset;  ///< where in the protocol's file, if it lies there one to one
  unsigned depth = 0;                   ///< 0: this layer; 1: its backing file; ...
};

/// What does not change while a node is open (size, which resize() changes, is asked of size()).
struct NodeFacts {
  std::string name;                  ///< what messages call it: the file name, or the driver
  uint32_t request_alignment = 1;    ///< offsets and lengths aligned to this need no read-modify-write
  uint32_t memory_alignment = 1;     ///< buffers aligned to this need no bounce
  uint32_t discard_granularity = 0;  ///< 0: discard does nothing here
  uint32_t cluster_size = 0;         ///< the unit a format allocates in, bytes; 0: it allocates nothing
  bool supports_fua = false;
  bool supports_compressed = false;
  bool supports_zeroes = false;  ///< write_zeroes is more than writing zero buffers
  bool discard_zeroes = false;   ///< a discarded range reads as zeroes
  bool read_only = false;
  bool rotational = false;
};

/// Counted where the host is asked for something; exact.
struct ProtocolCounters {
  uint64_t reads = 0;
  uint64_t writes = 0;
  uint64_t fdatasyncs = 0;
  uint64_t fallocates = 0;

  ProtocolCounters& operator+=(const ProtocolCounters& other) {
    reads += other.reads;
    writes += other.writes;
    fdatasyncs += other.fdatasyncs;
    fallocates += other.fallocates;
    return *this;
  }
};

class Node {
 public:
  explicit Node(Reactor& reactor) : reactor_(reactor), sequencer_(*this) {}
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  virtual const NodeFacts& facts() const = 0;
  virtual uint64_t size() const = 0;

  virtual Task<Result<>> read(uint64_t offset, Buffers buffers) = 0;
  virtual Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) = 0;
  virtual Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) = 0;
  /// A hint: what was not possible is no error. Bytes outside whole granules stay as they are.
  virtual Task<Result<>> discard(uint64_t offset, uint64_t length) = 0;
  /// Makes durable all that had returned before the call (D1). Always does the work; eliding is the
  /// sequencer's.
  virtual Task<Result<>> flush() = 0;
  /// The status of the run that starts at `offset`, at most `length` bytes long, never empty for a valid
  /// range.
  virtual Task<Result<Extent>> map(uint64_t offset, uint64_t length) = 0;
  virtual Task<Result<>> resize(uint64_t size) = 0;
  /// Writes out what the node still holds and lets go of the host's resources. No flush is implied beyond
  /// what the format itself needs; after a failed flush nothing is written (D6). Called once, after the last
  /// operation.
  virtual Task<Result<>> close() = 0;

  /// D6: a flush has failed. From now on the node writes nothing by itself, not when idle and not at close;
  /// operations asked for go on. Passed down, since only the top node's sequencer hears of the failure.
  virtual void abandon() {
    if (Node* below = child()) below->abandon();
  }

  /// Somebody waits until all requests have ended: from here to the matching end_drain() a filter lets go on
  /// what it holds back for reasons of its own. May be nested. Use DrainSection. Passed down.
  virtual void begin_drain() {
    if (Node* below = child()) below->begin_drain();
  }
  virtual void end_drain() {
    if (Node* below = child()) below->end_drain();
  }

  /// The next node down, or null for a protocol. For printing the graph and adding up protocol counters.
  virtual Node* child() const { return nullptr; }
  /// The image below an overlay, read-only; it belongs to this node, which closes it. Null if there is none.
  virtual Node* backing() const { return nullptr; }
  virtual const ProtocolCounters* protocol_counters() const { return nullptr; }

  /// Decides about this node's flushes. Whoever writes to the node from outside its graph (a Disk, an export,
  /// a job) reports its completions here and flushes through it, so that all of them share one view of what
  /// is dirty (D5).
  FlushSequencer& sequencer() { return sequencer_; }
  Reactor& reactor() const { return reactor_; }

 protected:
  /// Invalid, with a message that names the range, if [offset, offset + length) does not lie inside size().
  Result<> check_range(const char* operation, uint64_t offset, uint64_t length) const {
    const uint64_t end = size();
    if (offset <= end && length <= end - offset) [[likely]]
      return {};
    return out_of_range(operation, offset, length, end);
  }

 private:
  Result<> out_of_range(const char* operation, uint64_t offset, uint64_t length, uint64_t end) const;

  Reactor& reactor_;
  FlushSequencer sequencer_;
};

/// While one exists, the graph under `top` holds no request back that it could let go (Node::begin_drain).
class DrainSection {
 public:
  explicit DrainSection(Node& top) : top_(&top) { top.begin_drain(); }
  DrainSection(DrainSection&& other) noexcept : top_(std::exchange(other.top_, nullptr)) {}
  DrainSection& operator=(DrainSection&&) = delete;
  ~DrainSection() {
    if (top_) top_->end_drain();
  }

 private:
  Node* top_;
};

}  // namespace spindle
