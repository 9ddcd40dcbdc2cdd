// Zeroes and discards: whole clusters by their entries, parts in place or by writing zeroes.
#include <algorithm>
#include <array>

#include "block/protocols/bounce_pool.h"
#include "formats/qcow2/qcow_node.h"

namespace spindle {

using qcow2::kZero;

namespace {

constexpr std::size_t kZeroBytes = 64 << 10;
alignas(4096) constinit std::array<std::byte, kZeroBytes> zeroes{};

}  // namespace

// Zero buffers through the way of a write, which finds them a place.
Task<Result<>> QcowNode::write_zero_buffers(uint64_t offset, uint64_t length) {
  constexpr uint64_t kMost = 2 << 20;
  for (uint64_t done = 0; done < length;) {
    const uint64_t here = std::min(kMost, length - done);
    std::vector<iovec> parts;
    for (uint64_t at = 0; at < here; at += kZeroBytes)
      parts.push_back({zeroes.data(), std::min<uint64_t>(kZeroBytes, here - at)});
    auto written = co_await write_runs(offset + done, Buffers(parts, here));
    if (!written) co_return written;
    done += here;
  }
  co_return Result<>{};
}

// Part of a unit, or what version 2 has no entry for.
Task<Result<>> QcowNode::zero_part(uint64_t offset, uint64_t length, ZeroFlags flags) {
  for (uint64_t done = 0; done < length;) {
    const uint64_t at = offset + done;
    auto run = co_await run_at("write_zeroes", at, length - done);
    if (!run) co_return std::unexpected(std::move(run.error()));
    // A run without a table is as long as that would reach; where the backing file ends is looked at by
    // cluster.
    if (run->kind == Kind::Unallocated && backing_)
      run->length = std::min(run->length, layout_.cluster_size() - layout_.in_cluster(at));
    Result<> zeroed;
    if (run->kind == Kind::Data && run->copied) {
      zeroed = check_target(run->host, run->length);
      if (!zeroed) co_return co_await give_up(*zeroed.error());
      const qcow2::InFlight::Request request(requests_);
      zeroed = co_await data().write_zeroes(run->host, run->length, flags);
    } else if (!reads_as_zeroes(run->kind, at)) {
      if (flags.no_fallback)
        co_return std::unexpected(Error::from_errno(EOPNOTSUPP, "write_zeroes", facts_.name, at));
      zeroed = co_await write_zero_buffers(at, run->length);
    } else if (busy_.free_from(guest_cluster(at), 1) == 0) {
      // Somebody is writing there; whatever was there first is zeroed over.
      co_await busy_.wait(guest_cluster(at));
      continue;
    }
    if (!zeroed) co_return zeroed;
    done += run->length;
  }
  co_return Result<>{};
}

QcowNode::L2Entry QcowNode::zeroed(const L2Entry& entry, bool unmap, bool discard) const {
  const bool allocated = entry.compressed() || entry.host_offset() != 0 || (data_ && entry.copied()) ||
                         (layout_.extended_l2 && entry.bitmap != 0);
  if (header_.version < 3) return (discard || unmap) && !backing_ ? L2Entry{} : entry;
  if (discard && !allocated && !backing_ && entry.entry == 0) return entry;
  const bool keep = !discard && !unmap && !entry.compressed() && entry.copied();
  const uint64_t place = keep ? entry.entry & ~kZero : 0;
  if (layout_.extended_l2) return {.entry = place, .bitmap = ~uint64_t{0} << 32};
  return {.entry = place | kZero, .bitmap = 0};
}

// Whole units: [offset, offset + length) begins and ends at unit boundaries, the end perhaps behind the
// disk's.
Task<Result<>> QcowNode::zero_clusters(uint64_t offset, uint64_t length, ZeroFlags flags, bool discard) {
  const uint64_t cluster_size = layout_.cluster_size();
  bool any = false;
  for (uint64_t done = 0; done < length;) {
    const uint64_t at = offset + done;
    if (discard && (l1_[l1_index(at)] & qcow2::kOffsetMask) == 0 && !backing_) {
      const uint64_t covers = layout_.l1_entry_covers();
      done += std::min(length - done, covers - (at & (covers - 1)));
      continue;
    }
    auto entries = co_await entries_to_change(at);
    if (!entries) co_return std::unexpected(std::move(entries.error()));
    if (busy_.free_from(guest_cluster(at), 1) == 0) {
      co_await busy_.wait(guest_cluster(at));
      continue;
    }
    const uint64_t most = busy_.free_from(guest_cluster(at), clusters_in_slice(at));
    uint64_t here = done;  // up to where no wait is needed
    for (uint64_t i = 0; i < most && here < length; ++i) {
      const uint64_t pos = offset + here;
      const uint64_t bytes = std::min(length - here, cluster_size - layout_.in_cluster(pos));
      const L2Entry old = entry_in(*entries, i);
      L2Entry now = zeroed(old, flags.unmap, discard);
      if (bytes != cluster_size) {
        if (old.compressed()) {
          if (discard) {
            here += bytes;
            continue;
          }
          break;
        }
        const unsigned bits = layout_.subcluster_bits();
        const uint64_t first = layout_.in_cluster(pos) >> bits, count = bytes >> bits;
        const uint64_t mask = ((uint64_t{1} << count) - 1) << first;
        now = {.entry = old.entry, .bitmap = (old.bitmap & ~mask) | mask << 32};
      }
      here += bytes;
      if (now == old) continue;
      set_entry(at, *entries, i, now);
      any = true;
      if (old.compressed() || (old.host_offset() != 0 && now.host_offset() == 0)) free_entry(old);
    }
    if (here == done) {
      const uint64_t bytes = std::min(length - done, cluster_size - layout_.in_cluster(at));
      if (flags.no_fallback)
        co_return std::unexpected(Error::from_errno(EOPNOTSUPP, "write_zeroes", facts_.name, at));
      auto written = co_await write_zero_buffers(at, std::min(bytes, disk_size_ - at));
      if (!written) co_return written;
      here += bytes;
    }
    done = here;
  }
  if (!any) co_return Result<>{};
  co_return co_await commit_->changed();
}

// What a raw data file shows has to be what the guest sees.
Task<Result<>> QcowNode::zero_data_file(uint64_t offset, uint64_t length, ZeroFlags flags, bool discard) {
  const uint64_t end = data_->size();
  if (offset >= end) co_return Result<>{};
  length = std::min(length, end - offset);
  const qcow2::InFlight::Request request(requests_);
  if (discard && !header_.data_is_raw()) co_return co_await data_->discard(offset, length);
  co_return co_await data_->write_zeroes(offset, length, flags);
}

Task<Result<>> QcowNode::write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) {
  SPINDLE_CO_TRY(check_modification("write_zeroes", offset, length));
  if (flags.fua)
    co_return std::unexpected(Error::from_errno(EOPNOTSUPP, "write_zeroes", facts_.name, offset));
  if (length == 0) co_return Result<>{};
  if (header_.version < 3 && (backing_ || !flags.unmap)) co_return co_await zero_part(offset, length, flags);
  const uint64_t unit = layout_.subcluster_size(), end = offset + length;
  const uint64_t first = std::min((offset + unit - 1) & ~(unit - 1), end);
  // The rest of the last cluster is nobody's.
  const uint64_t last =
      end == disk_size_ ? (end + unit - 1) & ~(unit - 1) : std::max(end & ~(unit - 1), first);
  if (data_ && header_.data_is_raw()) SPINDLE_CO_TRY(co_await zero_data_file(offset, length, flags, false));
  if (first > offset) SPINDLE_CO_TRY(co_await zero_part(offset, first - offset, flags));
  if (last > first) SPINDLE_CO_TRY(co_await zero_clusters(first, last - first, flags, false));
  if (end > last) SPINDLE_CO_TRY(co_await zero_part(last, end - last, flags));
  co_return Result<>{};
}

Task<Result<>> QcowNode::discard(uint64_t offset, uint64_t length) {
  SPINDLE_CO_TRY(check_modification("discard", offset, length));
  const uint64_t unit = layout_.cluster_size(), end = offset + length;
  const uint64_t first = (offset + unit - 1) & ~(unit - 1);
  const uint64_t last = end == disk_size_ ? (end + unit - 1) & ~(unit - 1) : end & ~(unit - 1);
  if (first >= last || (header_.version < 3 && backing_)) co_return Result<>{};
  SPINDLE_CO_TRY(co_await zero_clusters(first, last - first, {.unmap = true}, true));
  if (data_) co_return co_await zero_data_file(first, last - first, {.unmap = true}, true);
  co_return Result<>{};
}

}  // namespace spindle
