#include "formats/qcow2/check.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/qcow2/repair.h"

namespace spindle::qcow2 {

Task<Result<std::unique_ptr<Survey>>> Survey::make(Node& file) {
  if (!file.facts().read_only) {
    auto flushed = co_await file.flush();
    if (!flushed) flushed.error()->kind = ErrorKind::FlushFailed;
    if (!flushed) co_return std::unexpected(std::move(flushed.error()));
  }
  auto header = co_await read_header(file, {.tolerate_table_offsets = true});
  if (!header) co_return std::unexpected(std::move(header.error()));
  auto table = co_await RefcountTable::load(file, *header);
  if (!table) co_return std::unexpected(std::move(table.error()));
  auto survey = std::make_unique<Survey>(file, std::move(*header), std::move(*table));
  survey->report.total_clusters = survey->header.layout.clusters(survey->header.disk_size);
  SPINDLE_CO_TRY(co_await survey->references.find());
  survey->needs_blocks = survey->references.blocks_broken();
  SPINDLE_CO_TRY(co_await survey->compare());
  co_return survey;
}

Task<Result<>> Survey::compare() {
  const Layout& layout = header.layout;
  if (header.l1_entries < layout.l1_entries(header.disk_size)) {
    teller.corrupt(fmt::format("the L1 table has {} entries; a disk of {} bytes needs {}", header.l1_entries,
                               header.disk_size, layout.l1_entries(header.disk_size)));
  }
  for (const uint64_t window : references.windows()) {
    SPINDLE_CO_TRY(co_await references.load(window));
    for (uint64_t block = 0; block < table.entries().size(); ++block) {
      const uint64_t cluster = table.entries()[block] >> layout.cluster_bits;
      if (!table.usable(block) || cluster / References::kWindow != window) continue;
      if (references.uses(cluster) == 1) continue;
      needs_blocks = true;
      teller.corrupt(
          fmt::format("refcount block {} lies in cluster {}, which others use too", block, cluster));
    }
    SPINDLE_CO_TRY(co_await compare_window(window));
  }
  co_return Result<>{};
}

Task<Result<>> Survey::compare_window(uint64_t window) {
  const Layout& layout = header.layout;
  const uint64_t first = window * References::kWindow;
  const uint64_t end = std::min(first + References::kWindow, references.host_clusters());
  for (uint64_t cluster = first; cluster < end;) {
    const uint64_t block = table.block_of(cluster), next = std::min(table.first_cluster(block + 1), end);
    const bool usable = table.usable(block);
    auto bytes = co_await table.block(block);
    if (!bytes) co_return std::unexpected(std::move(bytes.error()));
    const uint64_t begin = table.first_cluster(block);
    for (; cluster < next; ++cluster) {
      const uint64_t count = refcount_at((*bytes)->data(), layout.refcount_order, cluster - begin);
      const uint64_t uses = references.uses(cluster);
      if (count == 0 && uses == 0) continue;
      report.image_end_offset = (cluster + 1) << layout.cluster_bits;
      if (count == uses) continue;
      if (count < uses) {
        needs_blocks |= !usable;
        beyond_counts |= uses > layout.largest_refcount();
        teller.corrupt(fmt::format("cluster {} has a count of {} and {} users", cluster, count, uses));
      } else {
        ++report.leaks;
        teller.tell(fmt::format("cluster {} leaks: it has a count of {} and {} users", cluster, count, uses));
      }
    }
  }
  co_return Result<>{};
}

Task<Result<CheckReport>> check(Node& file, Repair repair, ImageMutation mutation) {
  auto survey = co_await Survey::make(file);
  if (!survey) co_return std::unexpected(std::move(survey.error()));
  const Header& header = (*survey)->header;
  CheckReport found = (*survey)->report;
  const bool marked = header.has(kDirty) || header.has(kCorrupt);
  const bool wanted = repair == Repair::All ? found.corruptions != 0 || found.leaks != 0 || marked
                                            : repair == Repair::Leaks && found.leaks != 0;
  if (!wanted) co_return found;
  if (file.facts().read_only)
    co_return std::unexpected(Error::from_errno(EROFS, "repair", file.facts().name));
  SPINDLE_CO_TRY(co_await mend(file, std::move(*survey), repair, mutation));
  auto after = co_await Survey::make(file);
  if (!after) co_return std::unexpected(std::move(after.error()));
  CheckReport left = std::move((*after)->report);
  left.corruptions_fixed = found.corruptions - std::min(found.corruptions, left.corruptions);
  left.leaks_fixed = found.leaks - std::min(found.leaks, left.leaks);
  left.messages = std::move(found.messages);
  co_return left;
}

}  // namespace spindle::qcow2
