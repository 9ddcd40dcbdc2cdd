#include "formats/qcow2/refcount_table.h"

#include <algorithm>

#include "formats/qcow2/table_io.h"

namespace spindle::qcow2 {

Task<Result<RefcountTable>> RefcountTable::load(Node& file, const Header& header) {
  RefcountTable table(file, header.layout);
  const uint64_t offset = header.refcount_table_offset;
  const uint64_t bytes = uint64_t{header.refcount_table_clusters} << header.layout.cluster_bits;
  if (offset == 0 || header.layout.in_cluster(offset) != 0 || offset >= file.size() ||
      bytes > file.size() - offset || bytes > kLargestRefcountTableBytes)
    co_return table;
  auto words = co_await read_words(file, offset, bytes / sizeof(uint64_t));
  if (!words) co_return std::unexpected(std::move(words.error()));
  table.entries_ = std::move(*words);
  co_return table;
}

bool RefcountTable::usable(uint64_t block) const {
  if (block >= entries_.size() || entries_[block] == 0) return false;
  return layout_.in_cluster(entries_[block]) == 0 && entries_[block] < file_->size();
}

Task<Result<std::vector<std::byte>*>> RefcountTable::block(uint64_t block) {
  ++clock_;
  const auto found = std::ranges::find(cache_, block, &Cached::block);
  if (found != cache_.end()) {
    found->used = clock_;
    co_return &found->bytes;
  }
  if (cache_.size() < kCached) cache_.emplace_back();
  Cached& oldest =
      cache_.size() < kCached ? cache_.back() : *std::ranges::min_element(cache_, {}, &Cached::used);
  oldest.block = ~uint64_t{0};  // nothing, should the read fail
  oldest.bytes.assign(layout_.cluster_size(), std::byte{});
  if (usable(block)) SPINDLE_CO_TRY(co_await read_padded(*file_, entries_[block], oldest.bytes));
  oldest.block = block;
  oldest.used = clock_;
  co_return &oldest.bytes;
}

Task<Result<>> RefcountTable::write(uint64_t block) {
  const auto found = std::ranges::find(cache_, block, &Cached::block);
  co_return co_await write_bytes(*file_, entries_[block], found->bytes);
}

Task<Result<uint64_t>> RefcountTable::count(uint64_t cluster) {
  const uint64_t index = block_of(cluster);
  if (!usable(index)) co_return uint64_t{0};
  auto bytes = co_await block(index);
  if (!bytes) co_return std::unexpected(std::move(bytes.error()));
  co_return refcount_at((*bytes)->data(), layout_.refcount_order, cluster - first_cluster(index));
}

}  // namespace spindle::qcow2
