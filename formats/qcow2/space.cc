#include "formats/qcow2/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace spindle::qcow2 {
namespace {

constexpr unsigned kMostHolesAtOnce = 64;

}  // namespace

Space::Space(Node& file, const Layout& layout, Refcounts& refcounts, ClusterSet& metadata, InFlight& requests,
             Options options, Image image)
    : file_(file),
      layout_(layout),
      refcounts_(refcounts),
      metadata_(metadata),
      requests_(requests),
      options_(options),
      image_(std::move(image)),
      turns_(file.reactor()),
      step_(options.ahead ? std::max<uint64_t>(options.step >> layout.cluster_bits, 1) : 1) {}

std::unexpected<BoxedError> Space::no_space(const char* detail) const {
  return std::unexpected<BoxedError>(Error{
      .kind = ErrorKind::NoSpace, .operation = "allocate in", .node = file_.facts().name, .detail = detail});
}

std::optional<Space::Taken> Space::take(uint64_t most) {
  if (windows_.empty() || most == 0) return std::nullopt;
  Window& window = windows_.front();
  const bool ready = this->ready(window);
  if (window.must_be_durable && !ready && options_.mutation != NodeMutation::BlockUsedEarly)
    return std::nullopt;
  Taken taken{.cluster = window.clusters.first,
              .count = std::min(most, window.clusters.count),
              .ready = ready || options_.mutation == NodeMutation::AllSpaceReady};
  window.clusters.first += taken.count;
  window.clusters.count -= taken.count;
  at_hand_ -= taken.count;
  if (window.clusters.count == 0) windows_.pop_front();
  return taken;
}

Task<Result<Space::Taken>> Space::take_run(uint64_t count) {
  while (true) {
    for (auto window = windows_.begin(); window != windows_.end(); ++window) {
      if (window->clusters.count < count || (window->must_be_durable && !ready(*window))) continue;
      const Taken taken{.cluster = window->clusters.first, .count = count, .ready = ready(*window)};
      window->clusters.first += count;
      window->clusters.count -= count;
      at_hand_ -= count;
      if (window->clusters.count == 0) windows_.erase(window);
      co_return taken;
    }
    auto room = co_await make_room(count);
    if (!room) co_return std::unexpected(std::move(room.error()));
  }
}

Task<Result<>> Space::make_room(uint64_t least) {
  const uint64_t before = rounds_;
  Turns::Turn turn(turns_);
  co_await turn;
  // Somebody has made some meanwhile. It may be gone again: the caller looks again.
  if (rounds_ != before && least == 1) co_return Result<>{};
  auto made = co_await make_room_now(least);
  if (!made && made.error()->kind == ErrorKind::NoSpace) {
    // What was given up may be enough, once nothing in the file points to it.
    SPINDLE_CO_TRY(co_await image_.flush());
    const uint64_t lowest = cursor_;
    SPINDLE_CO_TRY(co_await release_now());
    if (cursor_ < lowest) made = co_await make_room_now(least);
  }
  if (made) ++rounds_;
  failed_ = !made;
  co_return made;
}

Task<Result<>> Space::make_room_now(uint64_t least) {
  SPINDLE_CO_TRY(co_await release_now());
  for (const Window& window : windows_) {
    // It only has to become durable; this is left from a commit that failed.
    if (window.must_be_durable && !ready(window)) co_return co_await image_.flush();
  }
  SPINDLE_CO_TRY(co_await align_end());
  bool linked = false;
  for (unsigned holes = 0; holes < kMostHolesAtOnce; ++holes) {
    auto run = co_await find_free(least, std::max(step_, least));
    if (!run) co_return std::unexpected(std::move(run.error()));
    const bool in_file = run->first < file_clusters();
    // Holes that are small are not enough for a step; but the file only grows when there is none.
    if (!in_file && holes != 0) break;
    Result<> ready;
    if (in_file) {
      if (missing_blocks(*run) >= run->count) {
        // Too small for the blocks that would count it.
        cursor_ = run->first + run->count;
        continue;
      }
      ready = co_await zero_holes(*run);
    } else {
      auto grown = co_await grow(*run, least);
      if (grown) {
        *run = *grown;
      } else {
        ready = std::unexpected(std::move(grown.error()));
      }
    }
    if (!ready) co_return ready;
    SPINDLE_CO_TRY(co_await use(*run));
    linked |= !windows_.empty() && windows_.back().must_be_durable;
    if (!in_file || least != 1 || at_hand_ >= step_) break;
  }
  if (linked && options_.mutation != NodeMutation::BlockUsedEarly) co_return co_await image_.flush();
  co_return Result<>{};
}

// An image may end within its last cluster; from here on it does not.
Task<Result<>> Space::align_end() {
  const uint64_t size = file_.size();
  if (layout_.in_cluster(size) == 0 || fixed_) co_return Result<>{};
  auto grown = co_await file_.resize(layout_.clusters(size) << layout_.cluster_bits);
  if (!grown && grown.error()->kind != ErrorKind::NoSpace) {
    fixed_ = true;
    co_return Result<>{};
  }
  co_return grown;
}

// A run of unused clusters from the cursor on that lies in the file, or else behind it.
Task<Result<Space::Clusters>> Space::find_free(uint64_t least, uint64_t most) {
  const uint64_t end = fixed_ ? file_.size() >> layout_.cluster_bits : file_clusters();
  const uint64_t limit = kOffsetMask >> layout_.cluster_bits;
  Clusters run{.first = cursor_, .count = 0};
  bool from_cursor = true;
  while (run.first + run.count < limit && run.count < most) {
    const uint64_t cluster = run.first + run.count;
    if (cluster == end && run.count != 0) {
      if (run.count >= least) break;
      run = {.first = end, .count = 0};
      from_cursor = false;
    }
    if (cluster >= end && fixed_) co_return no_space("the file or device cannot be made larger");
    const uint64_t here = cluster < end ? end - cluster : most;
    const uint64_t wanted = std::min(here, most - run.count);
    if (!refcounts_.has_block(cluster)) {
      // In the file, but out of the table's reach: left alone, since the table only grows with the file.
      if (cluster < end && cluster / refcounts_.per_block() >= refcounts_.table().size()) {
        if (run.count >= least) break;
        run = {.first = end, .count = 0};
        continue;
      }
      run.count += std::min(wanted, refcounts_.per_block() - cluster % refcounts_.per_block());
      continue;
    }
    auto counts = co_await refcounts_.at(cluster);
    if (!counts) co_return std::unexpected(std::move(counts.error()));
    for (uint64_t i = 0; i < std::min(counts->count, wanted); ++i) {
      if (refcounts_.get(*counts, i) == 0) {
        ++run.count;
        continue;
      }
      if (run.count >= least) {
        if (from_cursor && least == 1) cursor_ = run.first;
        co_return run;
      }
      if (run.count != 0) from_cursor = from_cursor && least == 1;
      run = {.first = cluster + i + 1, .count = 0};
      break;
    }
  }
  if (run.count < least) co_return no_space("no file offset is left that an image can name");
  if (from_cursor && least == 1) cursor_ = run.first;
  co_return run;
}

Task<Result<>> Space::zero_holes(Clusters run) {
  if (!settled_ && options_.mutation != NodeMutation::ReuseBeforeBarrier) {
    SPINDLE_CO_TRY(co_await image_.flush());
    settled_ = true;
  }
  touched_ = true;
  if (options_.mutation == NodeMutation::HolesNotZeroed) co_return Result<>{};
  co_return co_await file_.write_zeroes(run.first << layout_.cluster_bits, run.count << layout_.cluster_bits,
                                        {.unmap = true});
}

uint64_t Space::missing_blocks(Clusters run) const {
  const uint64_t per_block = refcounts_.per_block();
  uint64_t missing = 0;
  for (uint64_t index = run.first / per_block; index <= (run.first + run.count - 1) / per_block; ++index) {
    if (!refcounts_.has_block(index * per_block)) ++missing;
  }
  return missing;
}

// The run, longer by what counting it takes: its blocks, and a refcount table if none reaches all of it.
Result<Space::Clusters> Space::with_metadata(Clusters run) {
  new_table_ = 0;
  const uint64_t wanted = run.count, per_table_cluster = layout_.cluster_size() / 8;
  const uint64_t most = std::max(kLargestRefcountTableBytes, layout_.cluster_size()) >> layout_.cluster_bits;
  while (true) {
    const uint64_t entries = (run.first + run.count - 1) / refcounts_.per_block() + 1;
    if (entries > std::max(refcounts_.table().size(), new_table_ * per_table_cluster)) {
      const uint64_t needed = (entries + per_table_cluster - 1) / per_table_cluster;
      if (needed > most) return no_space("its refcount table is as large as it can be");
      // Half as much again, so that copying it stays rare.
      new_table_ = std::min(needed + needed / 2 + 1, most);
    }
    const uint64_t count = wanted + missing_blocks(run) + new_table_;
    if (count == run.count) return run;
    run.count = count;
  }
}

Task<Result<Space::Clusters>> Space::grow(Clusters run, uint64_t least) {
  touched_ = true;
  for (uint64_t count = run.count;; count = std::max(count / 2, least)) {
    auto wanted = with_metadata({run.first, count});
    if (!wanted) co_return std::unexpected(std::move(wanted.error()));
    auto grown = co_await file_.resize((wanted->first + wanted->count) << layout_.cluster_bits);
    if (grown) co_return *wanted;
    new_table_ = 0;
    // A smaller step may fit. A growth that failed left the file as it was.
    if (grown.error()->kind == ErrorKind::NoSpace && count > least) continue;
    if (grown.error()->kind == ErrorKind::NotSupported || grown.error()->kind == ErrorKind::Invalid) {
      fixed_ = true;
      co_return no_space("the file or device cannot be made larger");
    }
    co_return std::unexpected(std::move(grown.error()));
  }
}

// Counts the run, with the blocks and the table that this takes, and puts the rest at hand. Nothing of the
// table may be frozen meanwhile: a block is pointed to only when it counts itself.
Task<Result<>> Space::use(Clusters run) {
  const uint64_t table_clusters = std::exchange(new_table_, 0);
  for (uint64_t i = 0; i < run.count; ++i) {
    if (metadata_.contains(run.first + i)) {
      co_return std::unexpected(
          Error{.kind = ErrorKind::Corrupt,
                .operation = "allocate in",
                .node = file_.facts().name,
                .offset = (run.first + i) << layout_.cluster_bits,
                .detail = "its refcounts call this cluster free, but it holds metadata"});
    }
  }
  const uint64_t blocks = missing_blocks(run), table_at = run.first + blocks;
  MemoryTable& table = refcounts_.table();
  const uint64_t old_offset = table.offset(), old_entries = table.size();
  linking_ = true;
  if (table_clusters != 0)
    table.move(table_at << layout_.cluster_bits, table_clusters << layout_.cluster_bits >> 3);
  auto counted = co_await count(run);
  linking_ = false;
  if (!counted) {
    if (table_clusters != 0) table.move(old_offset, old_entries);
    co_return counted;
  }
  metadata_.add(run.first, blocks + table_clusters);
  if (table_clusters != 0) {
    image_.table_moved(table.offset(), table_clusters);
    const uint64_t old_clusters = layout_.clusters(old_entries * 8);
    if (options_.mutation == NodeMutation::OldTableFreedEarly) {
      give_back(old_offset >> layout_.cluster_bits, old_clusters);
    } else {
      free(old_offset >> layout_.cluster_bits, old_clusters);
    }
  }
  const Clusters usable{table_at + table_clusters, run.count - blocks - table_clusters};
  windows_.push_back(
      {.clusters = usable, .serial = serial_, .must_be_durable = blocks + table_clusters != 0});
  at_hand_ += usable.count;
  if (cursor_ >= run.first) cursor_ = std::max(cursor_, run.first + run.count);
  co_return Result<>{};
}

// Sets the counts of the run. Its first clusters become the blocks that are missing.
Task<Result<>> Space::count(Clusters run) {
  const uint64_t end = run.first + run.count, per_block = refcounts_.per_block();
  std::vector<uint64_t> linked;
  for (uint64_t index = run.first / per_block; index <= (end - 1) / per_block; ++index) {
    if (refcounts_.has_block(index * per_block)) continue;
    refcounts_.table().set(index, (run.first + linked.size()) << layout_.cluster_bits);
    linked.push_back(index);
  }
  const uint64_t skipped = options_.mutation == NodeMutation::BlockNotCounted ? linked.size() : 0;
  auto counted = co_await refcounts_.set_used(run.first + skipped, run.count - skipped);
  if (!counted) {
    for (const uint64_t index : linked) refcounts_.table().set(index, 0);
  }
  co_return counted;
}

void Space::free(uint64_t first, uint64_t count) {
  if (count == 0) return;
  touched_ = true;
  if (options_.mutation == NodeMutation::FreedAtOnce) return give_back(first, count);
  if (!freed_.empty() && freed_.back().first + freed_.back().count == first) {
    freed_.back().count += count;
    return;
  }
  freed_.push_back({first, count});
}

Task<Result<>> Space::release() {
  if (gone_.empty()) co_return Result<>{};
  Turns::Turn turn(turns_);
  co_await turn;
  co_return co_await release_now();
}

Task<Result<>> Space::release_now() {
  while (!gone_.empty()) {
    if (!requests_.ended(gone_.front().epoch) && options_.mutation != NodeMutation::FreedUnderRequests) break;
    Gone gone = std::move(gone_.front());
    gone_.pop_front();
    std::ranges::sort(gone.runs, {}, &Clusters::first);
    for (std::size_t i = 0; i < gone.runs.size(); ++i) {
      auto dropped = co_await drop(gone.runs[i]);
      if (dropped) continue;
      gone.runs.erase(gone.runs.begin(), gone.runs.begin() + static_cast<std::ptrdiff_t>(i));
      gone_.push_front(std::move(gone));
      co_return dropped;
    }
  }
  co_return Result<>{};
}

// One user less for each. A count that is 0 already contradicts the tables; there is nothing to take from it.
Task<Result<>> Space::drop(Clusters run) {
  for (uint64_t done = 0; done < run.count;) {
    const uint64_t cluster = run.first + done;
    if (!refcounts_.has_block(cluster)) {
      ++done;
      continue;
    }
    auto counts = co_await refcounts_.at(cluster);
    if (!counts) co_return std::unexpected(std::move(counts.error()));
    const uint64_t here = std::min(counts->count, run.count - done);
    uint64_t last_users = 0;
    while (last_users < here && refcounts_.get(*counts, last_users) == 1) ++last_users;
    if (last_users == 0) {
      if (const uint64_t count = refcounts_.get(*counts, 0); count > 1)
        refcounts_.set(*counts, cluster, 0, count - 1);
      ++done;
      continue;
    }
    for (uint64_t i = 0; i < last_users; ++i) image_.reused(cluster + i);
    // Only a hint: a range that could not be punched is used again all the same.
    static_cast<void>(
        co_await file_.discard(cluster << layout_.cluster_bits, last_users << layout_.cluster_bits));
    counts = co_await refcounts_.at(cluster);
    if (!counts) co_return std::unexpected(std::move(counts.error()));
    for (uint64_t i = 0; i < last_users; ++i) refcounts_.set(*counts, cluster, i, 0);
    metadata_.remove(cluster, last_users);
    cursor_ = std::min(cursor_, cluster);
    done += last_users;
  }
  co_return Result<>{};
}

Task<Result<uint64_t>> Space::put_down() {
  Turns::Turn turn(turns_);
  co_await turn;
  uint64_t end = file_.size();
  while (!windows_.empty()) {
    const Clusters run = windows_.back().clusters;
    for (uint64_t done = 0; done < run.count;) {
      auto counts = co_await refcounts_.at(run.first + done);
      if (!counts) co_return std::unexpected(std::move(counts.error()));
      const uint64_t here = std::min(counts->count, run.count - done);
      for (uint64_t i = 0; i < here; ++i) refcounts_.set(*counts, run.first + done, i, 0);
      done += here;
    }
    if ((run.first + run.count) << layout_.cluster_bits == end) end = run.first << layout_.cluster_bits;
    cursor_ = std::min(cursor_, run.first);
    at_hand_ -= run.count;
    windows_.pop_back();
  }
  co_return end;
}

void Space::freeze() {
  frozen_ = ++serial_;
  std::ranges::move(freed_, std::back_inserter(frozen_freed_));
  freed_.clear();
}

void Space::published() {
  settled_ = true;
  published_ = frozen_;
  if (!frozen_freed_.empty()) gone_.push_back({std::exchange(frozen_freed_, {}), requests_.end_epoch()});
}

void Space::restore() {
  std::ranges::move(freed_, std::back_inserter(frozen_freed_));
  freed_ = std::exchange(frozen_freed_, {});
}

}  // namespace spindle::qcow2
