// Writing: what has a place of its own is written there, the rest goes through qcow_place.cc.
#include <fmt/format.h>

#include <algorithm>

#include "block/protocols/bounce_pool.h"
#include "formats/qcow2/qcow_node.h"

namespace spindle {

Task<Result<>> QcowNode::write(uint64_t offset, Buffers buffers, WriteFlags flags) {
  auto allowed = check_modification("write", offset, buffers.size);
  if (allowed && flags.fua)
    allowed = std::unexpected(Error::from_errno(EOPNOTSUPP, "write", facts_.name, offset));
  if (!allowed || buffers.size == 0) return finished(std::move(allowed));
  if (flags.compressed) return write_compressed(offset, buffers);
  if ((l1_[l1_index(offset)] & qcow2::kCopied) != 0) {
    if (const std::byte* entries = entries_at_hand(offset)) {
      const Run run = run_in(entries, offset, buffers.size);
      if (run.length == buffers.size && run.kind == Kind::Data && run.copied &&
          check_run("write", offset, run) && check_target(run.host, run.length)) {
        return write_in_place(run.host, buffers);
      }
    }
  }
  return write_runs(offset, buffers);
}

Result<> QcowNode::check_target(uint64_t host, uint64_t length) const {
  if (data_) return {};
  const uint64_t last = (host + length - 1) >> layout_.cluster_bits;
  for (uint64_t cluster = host >> layout_.cluster_bits; cluster <= last; ++cluster) {
    if (metadata_.contains(cluster)) {
      return damaged("write", host,
                     fmt::format("an L2 entry points to the cluster at {:#x}, which holds metadata",
                                 cluster << layout_.cluster_bits));
    }
  }
  return {};
}

Task<Result<>> QcowNode::write_in_place(uint64_t host, Buffers buffers) {
  const qcow2::InFlight::Request request(requests_);
  co_return co_await data().write(host, buffers, {});
}

Task<Result<>> QcowNode::write_runs(uint64_t offset, Buffers buffers) {
  std::vector<iovec> parts;
  for (uint64_t done = 0; done < buffers.size;) {
    const uint64_t at = offset + done;
    auto entries = co_await entries_to_change(at);
    if (!entries) co_return std::unexpected(std::move(entries.error()));
    // Nothing waits from here to where the run is used.
    const Run run = run_in(*entries, at, buffers.size - done);
    auto sound = check_run("write", at, run);
    if (sound && run.kind == Kind::Data && run.copied) sound = check_target(run.host, run.length);
    if (!sound) co_return co_await give_up(*sound.error());
    if (run.kind == Kind::Data && run.copied) {
      Buffers piece = buffers;
      if (run.length != buffers.size) {
        slice(buffers, done, run.length, buffers.parts.size(), parts);
        piece = Buffers(parts, run.length);
      }
      auto written = co_await write_in_place(run.host, piece);
      if (!written) co_return written;
      done += run.length;
      continue;
    }
    const uint64_t cluster = guest_cluster(at);
    if (busy_.free_from(cluster, 1) == 0) {
      co_await busy_.wait(cluster);
      continue;
    }
    auto placed = co_await place(at, run, buffers, done);
    if (!placed) co_return std::unexpected(std::move(placed.error()));
    done += *placed;
  }
  co_return Result<>{};
}

}  // namespace spindle
