#include "formats/qcow2/references.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "formats/qcow2/table_io.h"

namespace spindle::qcow2 {
namespace {

constexpr uint64_t kL1Reserved = 0x7f00'0000'0000'01ff;
constexpr uint64_t kL2Reserved = 0x3f00'0000'0000'01fe;
constexpr uint64_t kBitmapReserved = 0xff00'0000'0000'01fe;
constexpr uint64_t kLowHalf = 0xffff'ffff;
constexpr uint64_t kPiece = 1 << 17;  // entries

}  // namespace

void Teller::tell(std::string line) {
  auto& lines = report_->messages;
  if (lines.size() < CheckReport::kMaxMessages) {
    lines.push_back(std::move(line));
  } else {
    lines.resize(CheckReport::kMaxMessages);
    lines.push_back(fmt::format("and {} more", ++untold_));
  }
}

References::References(Node& file, const Header& header, RefcountTable& counts, CheckReport& report,
                       Teller& teller)
    : file_(file),
      header_(header),
      layout_(header.layout),
      table_(counts),
      report_(report),
      teller_(teller),
      host_clusters_(layout_.clusters(file.size())) {}

void References::broken(std::string line) {
  if (!loud_) return;
  ++broken_entries_;
  teller_.corrupt(std::move(line));
}

void References::mend(Mend mend) {
  if (loud_ && broken_.size() < kMostMends) broken_.push_back(mend);
}

bool References::use(uint64_t offset, uint64_t bytes, uint64_t times) {
  if (bytes == 0) return true;
  const uint64_t first = offset >> layout_.cluster_bits;
  if (bytes > std::numeric_limits<uint64_t>::max() - offset) return false;
  const uint64_t last = (offset + bytes - 1) >> layout_.cluster_bits;
  if (last >= host_clusters_) return false;
  const uint64_t from = window_ * kWindow, to = from + counts_.size();
  for (uint64_t cluster = std::max(first, from); cluster < std::min(last + 1, to); ++cluster) {
    uint32_t& count = counts_[cluster - from];
    count = static_cast<uint32_t>(std::min<uint64_t>(std::numeric_limits<uint32_t>::max(), count + times));
  }
  if (loud_) {
    for (uint64_t window = first / kWindow; window <= last / kWindow; ++window) windows_.insert(window);
    end_ = std::max(end_, last + 1);
  }
  return true;
}

Task<Result<>> References::find() {
  loud_ = true;
  incomplete_ = bitmaps_broken_ = blocks_broken_ = false;
  end_ = next_data_ = wrong_flags_ = broken_entries_ = 0;
  windows_.clear();
  broken_.clear();
  flags_.clear();
  host_clusters_ = layout_.clusters(file_.size());
  auto walked = co_await walk(0);
  loud_ = false;
  for (uint64_t block = 0; block < table_.entries().size(); ++block) {
    const uint64_t first = table_.first_cluster(block);
    if (!table_.usable(block) || first >= host_clusters_) continue;
    const uint64_t last = std::min(table_.first_cluster(block + 1), host_clusters_) - 1;
    for (uint64_t window = first / kWindow; window <= last / kWindow; ++window) windows_.insert(window);
  }
  co_return walked;
}

Task<Result<>> References::load(uint64_t window) {
  if (window == window_) co_return Result<>{};
  co_return co_await walk(window);
}

Task<Result<>> References::walk(uint64_t window) {
  window_ = window;
  const uint64_t from = std::min(window * kWindow, host_clusters_);
  counts_.assign(std::min(kWindow, host_clusters_ - from), 0);
  use(0, layout_.cluster_size(), 1);
  const Table active{.offset = header_.l1_offset, .entries = header_.l1_entries, .times = 1, .active = true};
  SPINDLE_CO_TRY(co_await walk_l1(active, "L1 table"));
  SPINDLE_CO_TRY(co_await walk_snapshots());
  if (!without_counts_) walk_counts();
  co_return co_await walk_bitmaps();
}

Task<Result<>> References::walk_l1(Table table, std::string name) {
  const uint64_t bytes = table.entries * sizeof(uint64_t), size = file_.size();
  if (table.entries == 0) co_return Result<>{};
  if (table.offset == 0 || layout_.in_cluster(table.offset) != 0 || bytes > kLargestL1Bytes ||
      table.offset > size || bytes > size - table.offset) {
    incomplete_ = true;
    broken(fmt::format("the {} of {} entries at {} begins at no cluster, or goes beyond the file's {} bytes",
                       name, table.entries, table.offset, size));
    co_return Result<>{};
  }
  use(table.offset, bytes, table.times);
  const auto l1 = co_await read_words(file_, table.offset, table.entries);
  if (!l1) co_return std::unexpected(l1.error());
  // Neighbours in this order that are equal are the same table; the first of them is where it is walked.
  std::vector<uint32_t> order(l1->size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](uint32_t i) { return (*l1)[i] & kOffsetMask; });
  std::map<uint32_t, uint64_t> several;  // index to how often
  std::vector<bool> again(l1->size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t next = i + 1;
    const uint64_t offset = (*l1)[order[i]] & kOffsetMask;
    for (; next < order.size() && ((*l1)[order[next]] & kOffsetMask) == offset; ++next)
      again[order[next]] = true;
    if (offset != 0 && next - i > 1) several[order[i]] = next - i;
    i = next;
  }
  for (uint32_t i = 0; i < l1->size(); ++i) {
    const uint64_t word = (*l1)[i], offset = word & kOffsetMask, at = table.offset + i * sizeof(uint64_t);
    const uint64_t guest = uint64_t{i} << (layout_.cluster_bits + layout_.l2_bits());
    if ((word & kL1Reserved) != 0) {
      broken(fmt::format("entry {} of the {} has reserved bits set: 0x{:x}", i, name, word));
      mend({.at = at, .word = word & ~kL1Reserved});
    }
    if (offset == 0) continue;
    if (layout_.in_cluster(offset) != 0 || offset >= size) {
      broken(fmt::format("entry {} of the {} points to {}, where no cluster of the file begins", i, name,
                         offset));
      mend({.at = at, .word = 0});
      continue;
    }
    if (table.active && loud_) SPINDLE_CO_TRY(co_await check_flag(at, word & ~kL1Reserved, "L2 table"));
    if (again[i]) continue;
    const auto found = several.find(i);
    const uint64_t times = table.times * (found == several.end() ? 1 : found->second);
    SPINDLE_CO_TRY(co_await walk_l2(offset, times, table.active, guest));
  }
  co_return Result<>{};
}

Task<Result<>> References::check_flag(uint64_t at, uint64_t word, const char* what) {
  const uint64_t cluster = (word & kOffsetMask) >> layout_.cluster_bits;
  const auto count = co_await table_.count(cluster);
  if (!count) co_return std::unexpected(count.error());
  const bool should = *count == 1;
  if (should == ((word & kCopied) != 0)) co_return Result<>{};
  ++wrong_flags_;
  teller_.corrupt(fmt::format("the copied flag of the {} in cluster {}, whose count is {}, is {}", what,
                              cluster, *count, should ? "not set" : "set"));
  if (flags_.size() < kMostMends) flags_.push_back({.at = at, .word = word ^ kCopied});
  co_return Result<>{};
}

Task<Result<>> References::walk_l2(uint64_t offset, uint64_t times, bool active, uint64_t guest) {
  use(offset, layout_.cluster_size(), times);
  next_data_ = 0;
  const unsigned words = layout_.l2_entry_bytes() / sizeof(uint64_t);
  const auto l2 = co_await read_words(file_, offset, layout_.l2_entries() * words);
  if (!l2) co_return std::unexpected(l2.error());
  for (uint64_t i = 0; i < layout_.l2_entries(); ++i) {
    const L2Entry now{.entry = (*l2)[i * words], .bitmap = words == 2 ? (*l2)[i * words + 1] : 0};
    if (now.entry == 0 && now.bitmap == 0) continue;
    const uint64_t at = offset + i * words * sizeof(uint64_t);
    entry(at, times, active, guest + (i << layout_.cluster_bits), now);
    const bool placed = !now.compressed() && now.host_offset() != 0 && !header_.has(kExternalData);
    if (active && loud_ && placed && layout_.in_cluster(now.host_offset()) == 0 &&
        now.host_offset() < file_.size())
      SPINDLE_CO_TRY(co_await check_flag(at, now.entry & ~kL2Reserved, "data"));
  }
  co_return Result<>{};
}

void References::mend_l2(uint64_t at, L2Entry now, L2Entry better) {
  if (now.entry != better.entry) mend({.at = at, .word = better.entry});
  if (now.bitmap != better.bitmap) mend({.at = at + sizeof(uint64_t), .word = better.bitmap});
}

void References::entry(uint64_t at, uint64_t times, bool active, uint64_t guest, L2Entry now) {
  // What has no place reads as zeroes from now on, rather than as the backing file's old data.
  L2Entry nowhere;
  if (layout_.extended_l2) nowhere.bitmap = kLowHalf << kSubclusters;
  if (!layout_.extended_l2 && header_.version == 3) nowhere.entry = kZero;
  if (now.compressed()) {
    const CompressedPlace place = layout_.compressed_place(now.entry);
    if (header_.has(kExternalData) || !use(place.offset, place.bytes, times)) {
      broken(fmt::format("the compressed cluster of the disk's {} lies at {}, beyond the file", guest,
                         place.offset));
      return mend_l2(at, now, nowhere);
    }
    if (now.copied() || now.bitmap != 0) {
      broken(fmt::format("the compressed cluster of the disk's {} has flags that are for others", guest));
      mend_l2(at, now, {.entry = now.entry & ~kCopied, .bitmap = 0});
    }
    if (active && loud_) {
      ++report_.allocated_clusters;
      ++report_.fragmented_clusters;
      ++report_.compressed_clusters;
    }
    return;
  }
  L2Entry better = now;
  better.entry &= ~(layout_.extended_l2 ? kL2Reserved | kZero : kL2Reserved);
  const uint64_t offset = now.host_offset();
  if (layout_.extended_l2) {
    better.bitmap &= ~(now.bitmap >> kSubclusters);
    if (offset == 0 && !header_.has(kExternalData)) better.bitmap &= ~kLowHalf;
  }
  if (better != now) {
    broken(fmt::format("the entry 0x{:x} for the disk's {} has bits that contradict each other", now.entry,
                       guest));
    mend_l2(at, now, better);
  }
  if (offset == 0 && !(header_.has(kExternalData) && now.copied())) return;
  if (layout_.in_cluster(offset) != 0 ||
      (!header_.has(kExternalData) && !use(offset, layout_.cluster_size(), times))) {
    broken(fmt::format("the data of the disk's {} lie at {}, where no cluster of the file begins", guest,
                       offset));
    return mend_l2(at, now, nowhere);
  }
  if (!active || !loud_) return;
  ++report_.allocated_clusters;
  if (next_data_ != 0 && offset != next_data_) ++report_.fragmented_clusters;
  next_data_ = offset + layout_.cluster_size();
}

Task<Result<>> References::walk_snapshots() {
  const auto table = co_await read_snapshots(file_, header_);
  if (!table) {
    if (table.error()->kind != ErrorKind::Corrupt) co_return std::unexpected(table.error());
    incomplete_ = true;
    broken(table.error()->detail);
    co_return Result<>{};
  }
  use(header_.snapshots_offset, table->bytes, 1);
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> tables;
  for (const Snapshot& snapshot : table->snapshots) ++tables[{snapshot.l1_offset, snapshot.l1_entries}];
  for (const auto& [place, times] : tables) {
    const Table l1{.offset = place.first, .entries = place.second, .times = times};
    SPINDLE_CO_TRY(co_await walk_l1(l1, "L1 table of a snapshot"));
  }
  co_return Result<>{};
}

void References::walk_counts() {
  const uint64_t bytes = uint64_t{header_.refcount_table_clusters} << layout_.cluster_bits;
  if (table_.empty()) {
    blocks_broken_ = true;
    broken(fmt::format("the refcount table of {} bytes at {} begins at no cluster, or goes beyond the file",
                       bytes, header_.refcount_table_offset));
    return;
  }
  use(header_.refcount_table_offset, bytes, 1);
  for (uint64_t block = 0; block < table_.entries().size(); ++block) {
    const uint64_t offset = table_.entries()[block];
    if (offset == 0) continue;
    if (!table_.usable(block)) {
      blocks_broken_ = true;
      broken(fmt::format("refcount block {} lies at {}, where no cluster of the file begins", block, offset));
      continue;
    }
    use(offset, layout_.cluster_size(), 1);
  }
}

Task<Result<>> References::walk_bitmaps() {
  const auto fail = [this](std::string line) {
    bitmaps_broken_ = true;
    broken(std::move(line));
  };
  const auto entries = co_await read_bitmap_directory(file_, header_);
  if (!entries) {
    if (entries.error()->kind != ErrorKind::Corrupt) co_return std::unexpected(entries.error());
    fail(entries.error()->detail);
    co_return Result<>{};
  }
  if (entries->empty()) co_return Result<>{};
  const auto extension = bitmaps_of(header_, file_.facts().name);
  use((*extension)->directory_offset, (*extension)->directory_bytes, 1);
  for (const BitmapEntry& bitmap : *entries) {
    if (auto sound = check_bitmap_table(bitmap, layout_, file_.size(), file_.facts().name); !sound) {
      fail(sound.error()->detail);
      continue;
    }
    if (bitmap.table_entries > bitmap_table_entries(layout_, header_.disk_size, bitmap.granularity_bits) &&
        (bitmap.flags & kBitmapInUse) == 0) {
      fail(fmt::format("the table of bitmap {} is longer than its disk", bitmap.name));
      continue;
    }
    use(bitmap.table_offset, uint64_t{bitmap.table_entries} * sizeof(uint64_t), 1);
    for (uint64_t first = 0; first < bitmap.table_entries; first += kPiece) {
      const uint64_t count = std::min<uint64_t>(kPiece, bitmap.table_entries - first);
      const auto words = co_await read_bitmap_table(file_, bitmap, first, count);
      if (!words) co_return std::unexpected(words.error());
      for (const uint64_t word : *words) {
        const uint64_t offset = word & kOffsetMask;
        if ((word & kBitmapReserved) == 0 && offset == 0) continue;
        if ((word & (kBitmapReserved | kBitmapAllOnes)) != 0 || layout_.in_cluster(offset) != 0 ||
            !use(offset, layout_.cluster_size(), 1))
          fail(fmt::format("bitmap {} has an entry 0x{:x} that points nowhere", bitmap.name, word));
      }
    }
  }
  co_return Result<>{};
}

}  // namespace spindle::qcow2
