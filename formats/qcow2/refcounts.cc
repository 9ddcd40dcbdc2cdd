#include "formats/qcow2/refcounts.h"

#include <fmt/format.h>

#include <algorithm>

namespace spindle::qcow2 {

Refcounts::Refcounts(Node& file, const Header& header, uint64_t cache_bytes)
    : file_(file), layout_(header.layout), cache_(file, header.layout.cluster_size(), cache_bytes) {}

Task<Result<>> Refcounts::load(const Header& header) {
  const uint64_t bytes = uint64_t{header.refcount_table_clusters} << layout_.cluster_bits;
  return table_.read(file_, header.refcount_table_offset, bytes / 8);
}

uint64_t Refcounts::bytes_at(uint64_t cluster) const {
  return (cluster % per_block() << layout_.refcount_order) / 8;
}

Task<Result<Refcounts::Run>> Refcounts::at(uint64_t cluster) {
  const uint64_t index = cluster / per_block();
  const uint64_t block = table_[index] & ~uint64_t{kSector - 1};
  if (layout_.in_cluster(table_[index]) != 0) {
    co_return std::unexpected(
        Error{.kind = ErrorKind::Corrupt,
              .operation = "read the refcounts of",
              .node = file_.facts().name,
              .offset = block,
              .detail = fmt::format("entry {} of its refcount table is {:#x}, which is no cluster's start; "
                                    "`spindle img check -r all` mends this",
                                    index, table_[index])});
  }
  const uint64_t within = bytes_at(cluster);
  auto bytes = co_await cache_.get(block + within);
  if (!bytes) co_return std::unexpected(std::move(bytes.error()));
  const uint64_t slice = cache_.slice_bytes();
  Run run;
  run.bytes = *bytes - within % slice;
  const uint64_t per_slice = slice * 8 >> layout_.refcount_order;
  run.index = cluster % per_block() % per_slice;
  run.count = std::min(per_slice - run.index, per_block() - cluster % per_block());
  co_return run;
}

void Refcounts::set(const Run& run, uint64_t cluster, uint64_t i, uint64_t count) {
  set_refcount(run.bytes, layout_.refcount_order, run.index + i, count);
  const uint64_t block = table_[cluster / per_block()];
  cache_.mark(block + bytes_at(cluster + i),
              std::max<uint64_t>((uint64_t{1} << layout_.refcount_order) / 8, 1));
}

Task<Result<>> Refcounts::set_used(uint64_t first, uint64_t clusters) {
  for (uint64_t done = 0; done < clusters;) {
    auto run = co_await at(first + done);
    if (!run) co_return std::unexpected(std::move(run.error()));
    const uint64_t here = std::min(run->count, clusters - done);
    for (uint64_t i = 0; i < here; ++i) set(*run, first + done, i, 1);
    done += here;
  }
  co_return Result<>{};
}

Task<Result<bool>> Refcounts::raise(uint64_t cluster) {
  auto run = co_await at(cluster);
  if (!run) co_return std::unexpected(std::move(run.error()));
  const uint64_t count = get(*run, 0);
  if (count >= layout_.largest_refcount()) co_return false;
  set(*run, cluster, 0, count + 1);
  co_return true;
}

}  // namespace spindle::qcow2
