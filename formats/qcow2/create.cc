#include "formats/qcow2/create.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/qcow2/table_io.h"

namespace spindle::qcow2 {
namespace {

constexpr std::size_t kPiece = 1 << 20;

Task<Result<>> write_zeroes_out(Node& file, uint64_t offset, uint64_t length) {
  const std::vector<std::byte> zeroes(std::min<uint64_t>(kPiece, length));
  for (const uint64_t end = offset + length; offset < end; offset += zeroes.size()) {
    const auto piece = std::span(zeroes).first(std::min<uint64_t>(zeroes.size(), end - offset));
    SPINDLE_CO_TRY(co_await write_bytes(file, offset, piece));
  }
  co_return Result<>{};
}

// Room for [offset, offset + length) that reads as zeroes, in a file that has it already as a hole.
Task<Result<>> reserve(Node& file, uint64_t offset, uint64_t length, Preallocation preallocation) {
  if (length == 0) co_return Result<>{};
  if (preallocation == Preallocation::Falloc)
    co_return co_await file.write_zeroes(offset, length, {.unmap = false, .no_fallback = true});
  if (preallocation == Preallocation::Full) co_return co_await write_zeroes_out(file, offset, length);
  co_return Result<>{};
}

// An empty file of `size` that reads as zeroes; of a device, which keeps its size, the same range.
Task<Result<>> make_room(Node& file, uint64_t size) {
  auto emptied = co_await file.resize(0);
  if (emptied) co_return co_await file.resize(size);
  if (emptied.error()->kind != ErrorKind::NotSupported) co_return emptied;
  if (size > file.size()) {
    co_return std::unexpected(
        Error::invalid("create", file.facts().name,
                       fmt::format("the device has {} bytes, and the image needs {}", file.size(), size)));
  }
  co_return co_await file.write_zeroes(0, size, {.unmap = true});
}

Task<Result<>> write_counts(Node& file, const CreatePlan& plan) {
  const Layout& layout = plan.header.layout;
  const uint64_t entries = layout.refcount_block_entries();
  std::vector<uint64_t> table(plan.refcount_blocks);
  std::vector<std::byte> block(layout.cluster_size());
  for (uint64_t i = 0; i < table.size(); ++i) {
    table[i] = plan.bytes(plan.refcount_blocks_at() + i);
    const uint64_t used = std::min(entries, plan.total_clusters - i * entries);
    for (uint64_t at = 0; at < entries; ++at)
      set_refcount(block.data(), layout.refcount_order, at, at < used ? 1 : 0);
    SPINDLE_CO_TRY(co_await write_bytes(file, table[i], block));
  }
  co_return co_await write_words(file, plan.header.refcount_table_offset, table);
}

Task<Result<>> write_map(Node& file, const CreatePlan& plan) {
  const Header& header = plan.header;
  const Layout& layout = header.layout;
  std::vector<uint64_t> l1(plan.l2_tables);
  const uint64_t clusters = layout.clusters(header.disk_size), words = layout.l2_entry_bytes() / 8;
  // Over a backing file a cluster has its place, but shows nothing of it yet.
  const uint64_t bitmap = header.backing ? 0 : (uint64_t{1} << kSubclusters) - 1;
  for (uint64_t table = 0; table < l1.size(); ++table) {
    const uint64_t first = table << layout.l2_bits();
    const uint64_t count = std::min(layout.l2_entries(), clusters - first);
    std::vector<uint64_t> l2(count * words);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t place = header.has(kExternalData) ? first + i : plan.data_at() + first + i;
      l2[i * words] = plan.bytes(place) | kCopied;
      if (words == 2) l2[i * words + 1] = bitmap;
    }
    const uint64_t offset = plan.bytes(plan.l2_at() + table);
    SPINDLE_CO_TRY(co_await write_words(file, offset, l2));
    l1[table] = offset | kCopied;
  }
  if (l1.empty()) co_return Result<>{};
  co_return co_await write_words(file, header.l1_offset, l1);
}

Task<Result<>> make_data_file(const CreateOptions& options, const CreatePlan& plan) {
  const std::string name = plan.header.text_of(ExtensionType::DataFile).value_or("");
  if (!options.make_data_file) {
    co_return std::unexpected(
        Error{.kind = ErrorKind::NotSupported,
              .operation = "create",
              .node = name,
              .detail = "a data file cannot be made here: leave data_file out, or use `spindle img create`"});
  }
  auto making = options.make_data_file(name);
  auto file = co_await making;
  if (!file) co_return std::unexpected(std::move(file.error()));
  auto step = co_await make_room(**file, plan.header.disk_size);
  if (step) step = co_await reserve(**file, 0, plan.header.disk_size, plan.preallocation);
  if (step) step = co_await (*file)->flush();
  auto closed = co_await (*file)->close();
  if (step && !closed) co_return closed;
  co_return step;
}

}  // namespace

Task<Result<>> create(Node& file, CreateOptions options) {
  const auto plan = plan_image(options, file.facts().name);
  if (!plan) co_return std::unexpected(plan.error());
  // What cannot be encoded is refused before anything is lost.
  const auto encoded = encode_header(plan->header, file.facts().name);
  if (!encoded) co_return std::unexpected(encoded.error());
  if (plan->header.has(kExternalData)) SPINDLE_CO_TRY(co_await make_data_file(options, *plan));
  auto step = co_await make_room(file, plan->bytes(plan->total_clusters));
  if (step) {
    step = co_await reserve(file, plan->bytes(plan->data_at()), plan->bytes(plan->data_clusters),
                            plan->preallocation);
  }
  if (step) step = co_await write_counts(file, *plan);
  if (step) step = co_await write_map(file, *plan);
  if (step) step = co_await file.flush();
  if (step) step = co_await write_header(file, plan->header);
  if (step) step = co_await file.flush();
  co_return step;
}

}  // namespace spindle::qcow2
