// Writing into clusters that have no place of their own yet (qcow_node.h says how the two ways differ).
#include <algorithm>
#include <cstring>

#include "block/protocols/bounce_pool.h"
#include "formats/qcow2/qcow_node.h"

namespace spindle {

using qcow2::kCopied;
using qcow2::NodeMutation;

namespace {

bool all_zero(const std::byte* bytes, uint64_t length) {
  return length == 0 || (bytes[0] == std::byte{0} && std::memcmp(bytes, bytes + 1, length - 1) == 0);
}

}  // namespace

// Whether the guest sees zeroes at `offset` because there is nothing, rather than by chance.
bool QcowNode::reads_as_zeroes(Kind kind, uint64_t offset) const {
  if (kind == Kind::Zero || kind == Kind::ZeroAllocated) return true;
  return kind == Kind::Unallocated && (!backing_ || layout_.cluster_start(offset) >= backing_->size());
}

// Its subclusters cannot stay where they are when one of them gets a new place.
bool QcowNode::copies_whole(const L2Entry& entry) const {
  return entry.compressed() || (!data_ && entry.host_offset() != 0 && !entry.copied());
}

// The entry when the subclusters in [offset, offset + length) of the cluster that starts at `cluster` hold
// data at `place`.
QcowNode::L2Entry QcowNode::with_data(const L2Entry& old, uint64_t place, uint64_t cluster, uint64_t offset,
                                      uint64_t length) const {
  L2Entry entry{.entry = place | kCopied, .bitmap = 0};
  if (!layout_.extended_l2) return entry;
  const unsigned bits = layout_.subcluster_bits();
  const uint64_t begin = std::max(offset, cluster);
  const uint64_t end = std::min(offset + length, cluster + layout_.cluster_size());
  const uint64_t first = (begin - cluster) >> bits, last = (end - 1 - cluster) >> bits;
  const uint64_t allocated =
      ((uint64_t{2} << last) - 1) & ~((uint64_t{1} << first) - 1) & ((uint64_t{1} << 32) - 1);
  const uint64_t before = old.compressed() ? 0 : old.bitmap;
  entry.bitmap = (before | allocated) & ~(allocated << 32);
  if (old.compressed()) entry.bitmap = (uint64_t{1} << 32) - 1;
  return entry;
}

Task<Result<>> QcowNode::make_room() {
  auto room = co_await space_->make_room();
  if (!room && room.error()->kind == ErrorKind::Corrupt) co_return co_await give_up(*room.error());
  co_return room;
}

Task<Result<uint64_t>> QcowNode::place(uint64_t offset, const Run& run, Buffers buffers, uint64_t done) {
  const std::byte* entries = entries_at_hand(offset);
  if (!entries) return finished(Result<uint64_t>(0));
  const uint64_t first = guest_cluster(offset);
  uint64_t clusters = guest_cluster(offset + run.length - 1) - first + 1;
  clusters = busy_.free_from(first, clusters);
  // Of one sort: with a place that can be used, or without.
  const auto has_place = [this](const L2Entry& entry) {
    return data_ != nullptr || (entry.host_offset() != 0 && entry.copied() && !entry.compressed());
  };
  const auto is_new = [&](uint64_t i) {
    const L2Entry entry = entry_in(entries, i);
    return !data_ && !merge_ && entry.host_offset() == 0 && !entry.compressed() &&
           reads_as_zeroes(run.kind, (first + i) << layout_.cluster_bits);
  };
  const bool fresh = is_new(0), placed = has_place(run.entry);
  uint64_t count = 1;
  if (!placed || data_) {
    while (count < clusters && is_new(count) == fresh && (data_ || !has_place(entry_in(entries, count))))
      ++count;
  }
  const uint64_t length = std::min(run.length, (count << layout_.cluster_bits) - layout_.in_cluster(offset));
  if (fresh) return place_new(offset, count, length, buffers, done);
  return place_copy(offset, count, length, buffers, done);
}

Task<Result<uint64_t>> QcowNode::place_new(uint64_t offset, uint64_t clusters, uint64_t length,
                                           Buffers buffers, uint64_t done) {
  const auto taken = space_->take(clusters);
  if (!taken) {
    auto room = co_await make_room();
    if (!room) co_return std::unexpected(std::move(room.error()));
    co_return 0;
  }
  const uint64_t start = layout_.cluster_start(offset), host = taken->cluster << layout_.cluster_bits;
  length = std::min(length, start + (taken->count << layout_.cluster_bits) - offset);
  std::byte* entries = entries_at_hand(offset);
  for (uint64_t i = 0; i < taken->count; ++i) {
    const uint64_t along = i << layout_.cluster_bits;
    set_entry(offset, entries, i,
              with_data(entry_in(entries, i), host + along, start + along, offset, length));
  }
  if (!taken->ready) needs_barrier_ = true;
  Buffers piece = buffers;
  std::vector<iovec> parts;
  if (length != buffers.size) {
    slice(buffers, done, length, buffers.parts.size(), parts);
    piece = Buffers(parts, length);
  }
  auto written = co_await write_in_place(host + layout_.in_cluster(offset), piece);
  if (!written) co_return std::unexpected(std::move(written.error()));
  // Early, while there is some left. Whether that works is known when it is needed.
  if (space_->low()) static_cast<void>(co_await space_->make_room());
  auto changed = co_await commit_->changed();
  if (!changed) co_return std::unexpected(std::move(changed.error()));
  co_return length;
}

Task<Result<uint64_t>> QcowNode::place_copy(uint64_t offset, uint64_t clusters, uint64_t length,
                                            Buffers buffers, uint64_t done) {
  const uint64_t start = layout_.cluster_start(offset);
  const L2Entry old = entry_in(entries_at_hand(offset), 0);
  const bool own = data_ || (old.host_offset() != 0 && old.copied() && !old.compressed());
  uint64_t host = data_ ? start : old.host_offset();
  Space::Taken taken;
  if (!own) {
    const auto place = space_->take(clusters);
    if (!place) {
      auto room = co_await make_room();
      if (!room) co_return std::unexpected(std::move(room.error()));
      co_return 0;
    }
    taken = *place;
    host = taken.cluster << layout_.cluster_bits;
    clusters = taken.count;
  } else if (!data_) {
    auto sound = check_target(host, layout_.cluster_size());
    if (!sound) {
      auto given_up = co_await give_up(*sound.error());
      co_return std::unexpected(std::move(given_up.error()));
    }
  }
  length = std::min(length, start + (clusters << layout_.cluster_bits) - offset);
  const qcow2::BusyClusters::Hold hold(busy_, guest_cluster(offset), clusters);
  Result<> result;
  if (options_.mutation == NodeMutation::EntryBeforeCopy)
    result = co_await set_copied(offset, length, clusters, host);
  // What is copied: the units touched, or all of a cluster whose subclusters move.
  const uint64_t unit = copies_whole(old) ? layout_.cluster_size() : layout_.subcluster_size();
  const uint64_t begin = offset & ~(unit - 1);
  const uint64_t end = (offset + length + unit - 1) & ~(unit - 1);
  if (result)
    result = co_await write_merged(begin, end, offset, length, host + (begin - start), !own && !merge_,
                                   buffers, done);
  if (result && options_.mutation != NodeMutation::EntryBeforeCopy)
    result = co_await set_copied(offset, length, clusters, host);
  if (!result) {
    if (!own) space_->give_back(taken.cluster, clusters);
    co_return std::unexpected(std::move(result.error()));
  }
  if (space_ && space_->low()) static_cast<void>(co_await space_->make_room());
  result = co_await commit_->changed();
  if (!result) co_return std::unexpected(std::move(result.error()));
  co_return length;
}

// Points the clusters to their copies. The data is written; it has to be durable before the entries are.
Task<Result<>> QcowNode::set_copied(uint64_t offset, uint64_t length, uint64_t clusters, uint64_t host) {
  auto entries = co_await entries_to_change(offset);
  if (!entries) co_return std::unexpected(std::move(entries.error()));
  const uint64_t start = layout_.cluster_start(offset);
  for (uint64_t i = 0; i < clusters; ++i) {
    const uint64_t along = i << layout_.cluster_bits;
    const L2Entry old = entry_in(*entries, i);
    const L2Entry now = with_data(old, host + along, start + along, offset, length);
    if (now == old) continue;
    set_entry(offset, *entries, i, now);
    if (old.compressed() || old.host_offset() != now.host_offset()) free_entry(old);
  }
  if (options_.mutation != NodeMutation::CopyNotDurable) needs_barrier_ = true;
  co_return Result<>{};
}

// [begin, end) of the disk goes to `host`: what the guest writes, and around it what it saw there before.
Task<Result<>> QcowNode::write_merged(uint64_t begin, uint64_t end, uint64_t offset, uint64_t length,
                                      uint64_t host, bool space_is_zero, Buffers buffers, uint64_t done) {
  uint64_t head = offset - begin, tail = end - offset - length;
  if (data_) {
    // A data file ends where the disk does.
    const uint64_t last = std::max(data_->size(), offset + length);
    tail = std::min(end, last) - offset - length;
  }
  const qcow2::InFlight::Request request(requests_);
  qcow2::CopyBudget::Share share(copying_, std::min(head + tail, qcow2::CopyBudget::kBytes));
  co_await share;
  std::vector<std::byte> around(head + tail);
  if (head != 0) SPINDLE_CO_TRY(co_await read_flat(begin, around.data(), head));
  if (tail != 0) SPINDLE_CO_TRY(co_await read_flat(offset + length, around.data() + head, tail));
  std::vector<iovec> own;
  slice(buffers, done, length, buffers.parts.size(), own);
  const bool with_head = head != 0 && !(space_is_zero && all_zero(around.data(), head));
  const bool with_tail = tail != 0 && !(space_is_zero && all_zero(around.data() + head, tail));
  std::vector<iovec> parts;
  parts.reserve(own.size() + 2);
  if (with_head) parts.push_back({around.data(), head});
  parts.insert(parts.end(), own.begin(), own.end());
  if (with_tail) parts.push_back({around.data() + head, tail});
  co_return co_await data().write(with_head ? host : host + head,
                                  Buffers(parts, length + (with_head ? head : 0) + (with_tail ? tail : 0)),
                                  {});
}

}  // namespace spindle
