// Reading, and saying what lies where.
#include <algorithm>

#include "block/protocols/bounce_pool.h"
#include "formats/qcow2/qcow_node.h"

namespace spindle {

Task<Result<>> QcowNode::read(uint64_t offset, Buffers buffers) {
  auto inside = check_range("read", offset, buffers.size);
  if (!inside || buffers.size == 0) return finished(std::move(inside));
  if (const std::byte* entries = entries_at_hand(offset)) {
    const Run run = run_in(entries, offset, buffers.size);
    if (run.length == buffers.size && run.kind == Kind::Data) {
      if (auto sound = check_run("read", offset, run); !sound) return finished(std::move(sound));
      return read_in_place(run.host, buffers);
    }
  }
  return read_runs(offset, buffers);
}

Task<Result<>> QcowNode::read_in_place(uint64_t host, Buffers buffers) {
  const qcow2::InFlight::Request request(requests_);
  const uint64_t end = data().size();
  if (end - host >= buffers.size) [[likely]]
    co_return co_await data().read(host, buffers);
  // An image may end within its last cluster, and a data file anywhere: behind that it is zeroes.
  const uint64_t there = host < end ? end - host : 0;
  zero_in(buffers, there, buffers.size - there);
  if (there == 0) co_return Result<>{};
  std::vector<iovec> parts;
  slice(buffers, 0, there, buffers.parts.size(), parts);
  co_return co_await data().read(host, Buffers(parts, there));
}

Task<Result<>> QcowNode::read_backing(uint64_t offset, Buffers buffers) {
  const uint64_t end = backing_ ? backing_->size() : 0;
  const uint64_t there = offset < end ? std::min(end - offset, buffers.size) : 0;
  if (there < buffers.size) zero_in(buffers, there, buffers.size - there);
  if (there == 0) return finished(Result<>{});
  if (there == buffers.size) return backing_->read(offset, buffers);
  return [](Node& backing, uint64_t from, Buffers all, uint64_t bytes) -> Task<Result<>> {
    std::vector<iovec> parts;
    slice(all, 0, bytes, all.parts.size(), parts);
    co_return co_await backing.read(from, Buffers(parts, bytes));
  }(*backing_, offset, buffers, there);
}

Task<Result<>> QcowNode::read_run(uint64_t offset, const Run& run, Buffers buffers, uint64_t done) {
  std::vector<iovec> parts;
  Buffers piece = buffers;
  if (run.length != buffers.size) {
    slice(buffers, done, run.length, buffers.parts.size(), parts);
    piece = Buffers(parts, run.length);
  }
  switch (run.kind) {
    case Kind::Unallocated:
      co_return co_await read_backing(offset, piece);
    case Kind::Data:
      co_return co_await read_in_place(run.host, piece);
    case Kind::Compressed:
      co_return co_await read_compressed(offset, run.entry, piece);
    case Kind::Zero:
    case Kind::ZeroAllocated:
    case Kind::Invalid:
      break;
  }
  zero_in(piece, 0, piece.size);
  co_return Result<>{};
}

Task<Result<>> QcowNode::read_runs(uint64_t offset, Buffers buffers) {
  for (uint64_t done = 0; done < buffers.size;) {
    auto run = co_await run_at("read", offset + done, buffers.size - done);
    if (!run) co_return std::unexpected(std::move(run.error()));
    auto result = co_await read_run(offset + done, *run, buffers, done);
    if (!result) co_return result;
    done += run->length;
  }
  co_return Result<>{};
}

// What the guest sees, with zeroes behind the disk's end.
Task<Result<>> QcowNode::read_flat(uint64_t offset, std::byte* bytes, uint64_t length) {
  const uint64_t there = offset < disk_size_ ? std::min(length, disk_size_ - offset) : 0;
  std::fill(bytes + there, bytes + length, std::byte{0});
  if (there == 0) co_return Result<>{};
  const iovec part{bytes, there};
  co_return co_await read_runs(offset, Buffers(std::span(&part, 1)));
}

Task<Result<Extent>> QcowNode::map(uint64_t offset, uint64_t length) {
  SPINDLE_CO_TRY(check_range("map", offset, length));
  if (length == 0) co_return Extent{.offset = offset, .zero = true};
  auto run = co_await run_at("map", offset, length);
  if (!run) co_return std::unexpected(std::move(run.error()));
  Extent extent{.offset = offset, .length = run->length};
  // Neighbours whose entries lie in other slices belong to the same run.
  while (extent.length < length) {
    const uint64_t next = offset + extent.length;
    auto more = co_await run_at("map", next, length - extent.length);
    if (!more) break;  // told when that place is asked for
    const bool in_place = run->kind == Kind::Data || run->kind == Kind::ZeroAllocated;
    if (more->kind != run->kind || (in_place && more->host != run->host + extent.length)) break;
    extent.length += more->length;
  }
  switch (run->kind) {
    case Kind::Unallocated:
      break;
    case Kind::Zero:
      extent.zero = true;
      co_return extent;
    case Kind::ZeroAllocated:
      extent.zero = true;
      extent.file_offset = run->host;
      co_return extent;
    case Kind::Data:
      extent.data = true;
      extent.file_offset = run->host;
      co_return extent;
    case Kind::Compressed:
    case Kind::Invalid:
      extent.data = true;
      co_return extent;
  }
  if (!backing_ || offset >= backing_->size()) {
    extent.zero = true;
    co_return extent;
  }
  auto below = co_await backing_->map(offset, std::min(extent.length, backing_->size() - offset));
  if (below) ++below->depth;
  co_return below;
}

}  // namespace spindle
