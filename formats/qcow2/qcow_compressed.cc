// Compressed clusters. Streams are packed one behind the other; each counts as a user of every cluster it
// lies in.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "block/protocols/bounce_pool.h"
#include "formats/qcow2/codec.h"
#include "formats/qcow2/qcow_node.h"

namespace spindle {

using qcow2::NodeMutation;

Task<Result<>> QcowNode::read_compressed(uint64_t offset, L2Entry entry, Buffers buffers) {
  const uint64_t within = layout_.in_cluster(offset);
  if (decompressed_entry_ != entry.entry || decompressed_.empty()) {
    const qcow2::InFlight::Request request(requests_);
    qcow2::CompressedPlace place = layout_.compressed_place(entry.entry);
    const uint64_t end = child_->size();
    if (place.offset >= end) {
      co_return damaged(
          "read", offset,
          fmt::format("its L2 entry points to compressed data at {:#x}, and the image has only {} "
                      "bytes",
                      place.offset, end));
    }
    place.bytes = std::min(place.bytes, end - place.offset);
    qcow2::CopyBudget::Share share(copying_, place.bytes + layout_.cluster_size());
    co_await share;
    std::vector<std::byte> stream(place.bytes), cluster(layout_.cluster_size());
    const iovec part{stream.data(), stream.size()};
    auto read = co_await child_->read(place.offset, Buffers(std::span(&part, 1)));
    if (!read) co_return read;
    auto whole = qcow2::decompress(header_.compression, stream, cluster);
    if (!whole) {
      co_return damaged("read", offset,
                        fmt::format("the compressed data at {:#x} is no whole cluster: {}", place.offset,
                                    whole.error()->detail));
    }
    copy_to(buffers, 0, cluster.data() + within, buffers.size);
    decompressed_ = std::move(cluster);
    decompressed_entry_ = entry.entry;
    co_return Result<>{};
  }
  copy_to(buffers, 0, decompressed_.data() + within, buffers.size);
  co_return Result<>{};
}

Task<Result<>> QcowNode::write_compressed(uint64_t offset, Buffers buffers) {
  const uint64_t cluster_size = layout_.cluster_size(), end = offset + buffers.size;
  if (layout_.in_cluster(offset) != 0 || (layout_.in_cluster(end) != 0 && end != disk_size_)) {
    co_return std::unexpected(
        Error{.kind = ErrorKind::Invalid,
              .operation = "write compressed data to",
              .node = facts_.name,
              .offset = offset,
              .detail = fmt::format("only whole clusters of {} bytes can be compressed", cluster_size)});
  }
  if (data_) co_return std::unexpected(Error::from_errno(EOPNOTSUPP, "write", facts_.name, offset));
  qcow2::CopyBudget::Share share(copying_, 2 * cluster_size);
  co_await share;
  std::vector<std::byte> cluster(cluster_size), room(cluster_size - 1);
  for (uint64_t done = 0; done < buffers.size; done += cluster_size) {
    const uint64_t length = std::min(cluster_size, buffers.size - done), at = offset + done;
    copy_from(buffers, done, cluster.data(), length);
    std::fill(cluster.begin() + static_cast<std::ptrdiff_t>(length), cluster.end(), std::byte{0});
    auto entries = co_await entries_to_change(at);
    if (!entries) co_return std::unexpected(std::move(entries.error()));
    if (busy_.free_from(guest_cluster(at), 1) == 0 || entry_in(*entries, 0).copied() ||
        entry_in(*entries, 0).compressed()) {
      co_return std::unexpected(Error{.kind = ErrorKind::Io,
                                      .number = EIO,
                                      .operation = "write compressed data to",
                                      .node = facts_.name,
                                      .offset = at,
                                      .detail = "the cluster has been written before; only new ones can be "
                                                "compressed"});
    }
    auto packed = qcow2::compress(header_.compression, cluster, room);
    if (!packed) co_return std::unexpected(std::move(packed.error()));
    Result<bool> stored = false;
    if (*packed) stored = co_await store_compressed(at, room.data(), **packed);
    if (!stored) co_return std::unexpected(std::move(stored.error()));
    if (*stored) continue;
    const iovec part{cluster.data(), length};
    auto written = co_await write_runs(at, Buffers(std::span(&part, 1)));
    if (!written) co_return written;
  }
  co_return Result<>{};
}

// False if the stream cannot be stored as one.
Task<Result<bool>> QcowNode::store_compressed(uint64_t offset, const std::byte* stream, uint64_t bytes) {
  const qcow2::BusyClusters::Hold hold(busy_, guest_cluster(offset), 1);
  const qcow2::InFlight::Request request(requests_);
  auto at = co_await room_for(bytes);
  if (!at) co_return std::unexpected(std::move(at.error()));
  const uint64_t first = *at >> layout_.cluster_bits;
  const uint64_t count = ((*at + bytes - 1) >> layout_.cluster_bits) - first + 1;
  const auto entry = layout_.compressed_entry(*at, bytes);
  if (!entry) {
    space_->give_back(first, count);
    co_return false;
  }
  const iovec part{const_cast<std::byte*>(stream), bytes};
  Result<> result = co_await child_->write(*at, Buffers(std::span(&part, 1)), {});
  decompressed_entry_ = 0;
  if (result) {
    auto entries = co_await entries_to_change(offset);
    if (entries) {
      const L2Entry old = entry_in(*entries, 0);
      set_entry(offset, *entries, 0, {.entry = *entry, .bitmap = 0});
      if (old.host_offset() != 0) free_entry(old);
      if (options_.mutation != NodeMutation::CopyNotDurable) needs_barrier_ = true;
    } else {
      result = std::unexpected(std::move(entries.error()));
    }
  }
  if (!result) {
    packing_at_ = 0;
    space_->give_back(first, count);
    co_return std::unexpected(std::move(result.error()));
  }
  auto changed = co_await commit_->changed();
  if (!changed) co_return std::unexpected(std::move(changed.error()));
  co_return true;
}

// Where a stream of less than a cluster goes, counted. The cluster that the last one ended in is used up
// first, and run over from if the next one is its neighbour.
Task<Result<uint64_t>> QcowNode::room_for(uint64_t bytes) {
  Turns::Turn turn(packing_turns_);
  co_await turn;
  const uint64_t at = packing_at_, cluster = at >> layout_.cluster_bits;
  const uint64_t left = at != 0 ? layout_.cluster_size() - layout_.in_cluster(at) : 0;
  std::optional<Space::Taken> taken;
  if (left < bytes) {
    auto one = co_await space_->take_run(1);
    if (!one) {
      if (one.error()->kind == ErrorKind::Corrupt)
        co_return std::unexpected((co_await give_up(*one.error())).error());
      co_return std::unexpected(std::move(one.error()));
    }
    taken = *one;
  }
  if (left != 0 && (!taken || taken->cluster == cluster + 1)) {
    auto counts = co_await refcounts_->at(cluster);
    if (!counts) co_return std::unexpected(std::move(counts.error()));
    const uint64_t count = refcounts_->get(*counts, 0);
    // Its last user may be gone meanwhile, and the rest of it with that.
    if (packing_at_ == at && count != 0 && count < layout_.largest_refcount()) {
      if (options_.mutation != NodeMutation::CompressedNotCounted)
        refcounts_->set(*counts, cluster, 0, count + 1);
      packing_at_ = layout_.in_cluster(at + bytes) != 0 ? at + bytes : 0;
      co_return at;
    }
  }
  if (!taken) {
    auto one = co_await space_->take_run(1);
    if (!one) co_return std::unexpected(std::move(one.error()));
    taken = *one;
  }
  const uint64_t start = taken->cluster << layout_.cluster_bits;
  packing_at_ = start + bytes;
  co_return start;
}

}  // namespace spindle
