#include "formats/qcow2/repair.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "block/big_endian.h"
#include "formats/qcow2/table_io.h"

namespace spindle::qcow2 {
namespace {

constexpr uint64_t kAutoclearAt = 88;

Task<Result<>> barrier(Node& file) {
  auto flushed = co_await file.flush();
  if (!flushed) flushed.error()->kind = ErrorKind::FlushFailed;
  co_return flushed;
}

Task<Result<>> write_mends(Node& file, const std::vector<Mend>& mends) {
  for (const Mend& mend : mends)
    SPINDLE_CO_TRY(co_await write_words(file, mend.at, std::span(&mend.word, 1)));
  co_return Result<>{};
}

Task<Result<>> look_again(Node& file, std::unique_ptr<Survey>& survey) {
  survey.reset();  // two of them would take twice the memory
  auto made = co_await Survey::make(file);
  if (!made) co_return std::unexpected(std::move(made.error()));
  survey = std::move(*made);
  co_return Result<>{};
}

enum class Direction : uint8_t { Raise, Lower };

Task<Result<>> settle(Survey& survey, Direction direction) {
  References& references = survey.references;
  RefcountTable& table = survey.table;
  const unsigned order = survey.header.layout.refcount_order;
  for (const uint64_t window : references.windows()) {
    SPINDLE_CO_TRY(co_await references.load(window));
    const uint64_t from = window * References::kWindow;
    const uint64_t end = std::min(from + References::kWindow, references.host_clusters());
    for (uint64_t block = table.block_of(from); table.first_cluster(block) < end; ++block) {
      if (!table.usable(block)) continue;
      auto bytes = co_await table.block(block);
      if (!bytes) co_return std::unexpected(std::move(bytes.error()));
      bool changed = false;
      const uint64_t first = table.first_cluster(block), last = std::min(table.first_cluster(block + 1), end);
      for (uint64_t cluster = first; cluster < last; ++cluster) {
        const uint64_t count = refcount_at((*bytes)->data(), order, cluster - first);
        const uint64_t uses = references.uses(cluster);
        if (direction == Direction::Raise ? count >= uses : count <= uses) continue;
        set_refcount((*bytes)->data(), order, cluster - first, uses);
        changed = true;
      }
      if (changed) SPINDLE_CO_TRY(co_await table.write(block));
    }
  }
  co_return Result<>{};
}

// Where new refcount blocks and their table go.
struct NewCounts {
  std::vector<uint64_t> blocks;  // which, in order
  uint64_t begin = 0;            // the cluster of the first block; the table follows the blocks
  uint64_t table_clusters = 0;

  uint64_t end() const { return begin + blocks.size() + table_clusters; }
};

Task<Result<NewCounts>> plan_counts(Survey& survey) {
  References& references = survey.references;
  const Layout& layout = survey.header.layout;
  const uint64_t words = layout.cluster_size() / sizeof(uint64_t);
  NewCounts plan{.blocks = {}, .begin = references.end(), .table_clusters = 1};
  std::set<uint64_t> needed;
  for (const uint64_t window : references.windows()) {
    SPINDLE_CO_TRY(co_await references.load(window));
    const uint64_t from = window * References::kWindow;
    const uint64_t end = std::min(from + References::kWindow, references.host_clusters());
    for (uint64_t cluster = from; cluster < end; ++cluster) {
      if (references.uses(cluster) == 0) continue;
      const uint64_t block = survey.table.block_of(cluster);
      needed.insert(block);
      cluster = survey.table.first_cluster(block + 1) - 1;
    }
  }
  // They count themselves, so their number is found by turns; it only ever grows.
  for (;;) {
    const uint64_t end = plan.begin + needed.size() + plan.table_clusters;
    const auto before = std::pair(needed.size(), plan.table_clusters);
    for (uint64_t block = survey.table.block_of(plan.begin); block <= survey.table.block_of(end - 1); ++block)
      needed.insert(block);
    plan.table_clusters = *needed.rbegin() / words + 1;
    if (std::pair(needed.size(), plan.table_clusters) == before) break;
  }
  if (plan.table_clusters << layout.cluster_bits > kLargestRefcountTableBytes) {
    co_return std::unexpected(
        Error{.kind = ErrorKind::Corrupt,
              .operation = "repair",
              .detail = "a new refcount table would be larger than one can be; what can be read can be "
                        "converted into a new image"});
  }
  plan.blocks.assign(needed.begin(), needed.end());
  co_return plan;
}

Task<Result<>> write_counts_anew(Node& file, Survey& survey, ImageMutation mutation) {
  References& references = survey.references;
  const Layout& layout = survey.header.layout;
  references.leave_out_counts();
  references.forget();
  const auto plan = co_await plan_counts(survey);
  if (!plan) co_return std::unexpected(plan.error());
  const uint64_t words = layout.cluster_size() / sizeof(uint64_t);
  std::vector<uint64_t> table(plan->table_clusters * words);
  std::vector<std::byte> bytes(layout.cluster_size());
  for (std::size_t i = 0; i < plan->blocks.size(); ++i) {
    const uint64_t first = survey.table.first_cluster(plan->blocks[i]);
    SPINDLE_CO_TRY(co_await references.load(first / References::kWindow));
    for (uint64_t at = 0; at < layout.refcount_block_entries(); ++at) {
      const uint64_t cluster = first + at;
      const bool own = cluster >= plan->begin && cluster < plan->end();
      set_refcount(bytes.data(), layout.refcount_order, at, own ? 1 : references.uses(cluster));
    }
    table[plan->blocks[i]] = (plan->begin + i) << layout.cluster_bits;
    SPINDLE_CO_TRY(co_await write_bytes(file, table[plan->blocks[i]], bytes));
  }
  const uint64_t offset = (plan->begin + plan->blocks.size()) << layout.cluster_bits;
  SPINDLE_CO_TRY(co_await write_words(file, offset, table));
  if (mutation != ImageMutation::SwitchBeforeCounts) SPINDLE_CO_TRY(co_await barrier(file));
  std::array<std::byte, 12> fields;
  big_endian::put64(fields.data(), offset);
  big_endian::put32(fields.data() + 8, static_cast<uint32_t>(plan->table_clusters));
  SPINDLE_CO_TRY(co_await write_bytes(file, kRefcountTableAt, fields));
  co_return co_await barrier(file);
}

Task<Result<>> clear_entries(Node& file, std::unique_ptr<Survey>& survey) {
  // A cleared table may show others as broken, and only so many are noted at a time.
  for (uint64_t before = ~uint64_t{0}; !survey->references.broken().empty();) {
    const uint64_t now = survey->references.broken_entries();
    if (now >= before) break;
    before = now;
    SPINDLE_CO_TRY(co_await write_mends(file, survey->references.broken()));
    SPINDLE_CO_TRY(co_await look_again(file, survey));
  }
  if (!survey->references.bitmaps_broken()) co_return Result<>{};
  const uint64_t autoclear = survey->header.autoclear & ~kBitmaps;
  SPINDLE_CO_TRY(co_await write_words(file, kAutoclearAt, std::span(&autoclear, 1)));
  co_return co_await look_again(file, survey);
}

Task<Result<>> mend_counts(Node& file, std::unique_ptr<Survey>& survey, ImageMutation mutation) {
  if (survey->beyond_counts) {
    co_return std::unexpected(Error{
        .kind = ErrorKind::Corrupt,
        .operation = "repair",
        .node = file.facts().name,
        .detail = fmt::format("some clusters have more users than its counts of {} bits can say; what can "
                              "be read can be converted into a new image",
                              1 << survey->header.layout.refcount_order)});
  }
  if (survey->needs_blocks) {
    SPINDLE_CO_TRY(co_await write_counts_anew(file, *survey, mutation));
  } else {
    SPINDLE_CO_TRY(co_await settle(*survey, Direction::Raise));
    SPINDLE_CO_TRY(co_await barrier(file));
    SPINDLE_CO_TRY(co_await settle(*survey, Direction::Lower));
    SPINDLE_CO_TRY(co_await barrier(file));
  }
  co_return co_await look_again(file, survey);
}

Task<Result<>> mend_flags(Node& file, std::unique_ptr<Survey>& survey) {
  for (uint64_t before = ~uint64_t{0}; !survey->references.flags().empty();) {
    const uint64_t now = survey->references.wrong_flags();
    if (now >= before) break;
    before = now;
    SPINDLE_CO_TRY(co_await write_mends(file, survey->references.flags()));
    SPINDLE_CO_TRY(co_await look_again(file, survey));
  }
  co_return Result<>{};
}

Task<Result<>> clear_marks(Node& file, const Header& header) {
  const uint64_t incompatible = header.incompatible & ~(kDirty | kCorrupt);
  if (incompatible == header.incompatible) co_return Result<>{};
  SPINDLE_CO_TRY(co_await write_words(file, kIncompatibleAt, std::span(&incompatible, 1)));
  co_return co_await barrier(file);
}

}  // namespace

Task<Result<>> mend(Node& file, std::unique_ptr<Survey> survey, Repair repair, ImageMutation mutation) {
  if (repair == Repair::Leaks) {
    const References& found = survey->references;
    if (found.incomplete() || found.broken_entries() != 0 || survey->needs_blocks) co_return Result<>{};
    const bool only_leaks = survey->report.corruptions == 0;
    SPINDLE_CO_TRY(co_await settle(*survey, Direction::Lower));
    SPINDLE_CO_TRY(co_await barrier(file));
    if (!only_leaks) co_return Result<>{};
    // A count that is one again wants its flag.
    SPINDLE_CO_TRY(co_await look_again(file, survey));
    SPINDLE_CO_TRY(co_await mend_flags(file, survey));
    co_return co_await barrier(file);
  }
  if (mutation == ImageMutation::BitsClearedBeforeRest)
    SPINDLE_CO_TRY(co_await clear_marks(file, survey->header));
  SPINDLE_CO_TRY(co_await clear_entries(file, survey));
  if (survey->references.incomplete()) co_return co_await barrier(file);
  if (survey->report.corruptions != 0 || survey->report.leaks != 0)
    SPINDLE_CO_TRY(co_await mend_counts(file, survey, mutation));
  SPINDLE_CO_TRY(co_await mend_flags(file, survey));
  if (survey->report.corruptions != 0) co_return co_await barrier(file);
  co_return co_await clear_marks(file, survey->header);
}

}  // namespace spindle::qcow2
