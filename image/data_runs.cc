#include "image/data_runs.h"

#include <algorithm>

namespace spindle::image {

Task<Result<std::vector<ByteRange>>> data_runs(Disk& disk) {
  std::vector<ByteRange> runs;
  for (uint64_t position = 0; position < disk.size();) {
    const auto extent = co_await disk.node().map(position, disk.size() - position);
    if (!extent) co_return std::unexpected(extent.error());
    if (extent->length == 0 || extent->length > disk.size() - position) {
      co_return std::unexpected(Error{
          .operation = "map", .node = disk.id(), .offset = position, .detail = "the answer makes no sense"});
    }
    if (extent->data && !extent->zero) {
      if (!runs.empty() && runs.back().offset + runs.back().length == position) {
        runs.back().length += extent->length;
      } else {
        runs.push_back({.offset = position, .length = extent->length});
      }
    }
    position += extent->length;
  }
  co_return runs;
}

uint64_t clusters_touched(const std::vector<ByteRange>& runs, uint64_t cluster) {
  uint64_t touched = 0, next = 0;  // the first cluster not counted yet
  for (const ByteRange& run : runs) {
    const uint64_t first = std::max(run.offset / cluster, next);
    const uint64_t end = (run.offset + run.length - 1) / cluster + 1;
    if (end <= first) continue;
    touched += end - first;
    next = end;
  }
  return touched;
}

}  // namespace spindle::image
