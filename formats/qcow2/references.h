// References: who uses which host cluster of an image, found by walking all of its tables.
//
// One walk counts the references to a window of host clusters, so that an image of any size is counted in
// bounded memory: a walk for each window that has any. The first walk (`loud`) also tells what is wrong with
// the entries themselves, and what they should be instead.
//
// Nothing is believed. An L2 table that several entries of one L1 table point to is read once, and counts
// several times, so that a small image cannot ask for more work than its file is long, for each snapshot.
//
// Memory: a window's counts (64 MiB), an L1 table and its order (48 MiB at most), an L2 table.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "block/format_registry.h"
#include "formats/qcow2/bitmap_directory.h"
#include "formats/qcow2/refcount_table.h"
#include "formats/qcow2/snapshot_table.h"

namespace spindle::qcow2 {

/// Lines for a CheckReport, at most as many as one holds.
class Teller {
 public:
  explicit Teller(CheckReport& report) : report_(&report) {}
  void tell(std::string line);
  void corrupt(std::string line) {
    ++report_->corruptions;
    tell(std::move(line));
  }

 private:
  CheckReport* report_;
  uint64_t untold_ = 0;
};

/// A word of a table that should be another one.
struct Mend {
  uint64_t at = 0;
  uint64_t word = 0;
};

class References {
 public:
  /// Clusters; as many as the largest refcount block counts, so that no block lies in two windows.
  static constexpr uint64_t kWindow = 16 << 20;
  static constexpr std::size_t kMostMends = 64 << 10;

  References(Node& file, const Header& header, RefcountTable& counts, CheckReport& report, Teller& teller);

  /// The walk that tells. Of window 0.
  Task<Result<>> find();
  /// Another window, silently; nothing if it is the last one walked.
  Task<Result<>> load(uint64_t window);
  /// How often `cluster`, in the window that was walked last, is used; at most 2^32 - 1.
  uint64_t uses(uint64_t cluster) const {
    const uint64_t index = cluster - window_ * kWindow;
    return index < counts_.size() ? counts_[index] : 0;
  }

  /// What find() found. Windows that anything refers to.
  const std::set<uint64_t>& windows() const { return windows_; }
  uint64_t host_clusters() const { return host_clusters_; }
  /// The first cluster behind all that are used.
  uint64_t end() const { return end_; }
  /// Some references could not be followed, so no count may be lowered: nobody knows who uses what.
  bool incomplete() const { return incomplete_; }
  bool bitmaps_broken() const { return bitmaps_broken_; }
  /// The refcount table, or an entry of it, cannot be used.
  bool blocks_broken() const { return blocks_broken_; }
  /// Entries that point nowhere or contradict themselves. May be cut off at kMostMends: then walk again.
  const std::vector<Mend>& broken() const { return broken_; }
  /// Copied flags that the counts in the file contradict; cut off like broken().
  const std::vector<Mend>& flags() const { return flags_; }
  uint64_t wrong_flags() const { return wrong_flags_; }
  uint64_t broken_entries() const { return broken_entries_; }

  /// Counts all but the refcount table and its blocks, which are to be replaced.
  void leave_out_counts() { without_counts_ = true; }
  /// What was walked is forgotten, since the image has changed.
  void forget() { window_ = ~uint64_t{0}; }

 private:
  struct Table {
    uint64_t offset = 0;
    uint64_t entries = 0;
    uint64_t times = 1;
    bool active = false;
  };

  Task<Result<>> walk(uint64_t window);
  Task<Result<>> walk_l1(Table table, std::string name);
  Task<Result<>> walk_l2(uint64_t offset, uint64_t times, bool active, uint64_t guest);
  Task<Result<>> check_flag(uint64_t at, uint64_t word, const char* what);
  void entry(uint64_t at, uint64_t times, bool active, uint64_t guest, L2Entry entry);
  void mend_l2(uint64_t at, L2Entry now, L2Entry better);
  Task<Result<>> walk_snapshots();
  Task<Result<>> walk_bitmaps();
  void walk_counts();
  /// Whether all of the range lies in the file, up to its last cluster's end. Then it is counted.
  bool use(uint64_t offset, uint64_t bytes, uint64_t times);
  void broken(std::string line);
  void mend(Mend mend);

  Node& file_;
  const Header& header_;
  const Layout& layout_;
  RefcountTable& table_;
  CheckReport& report_;
  Teller& teller_;
  uint64_t host_clusters_ = 0;
  uint64_t window_ = ~uint64_t{0};
  std::vector<uint32_t> counts_;
  bool loud_ = false, without_counts_ = false;
  bool incomplete_ = false, bitmaps_broken_ = false, blocks_broken_ = false;
  uint64_t end_ = 0, next_data_ = 0, wrong_flags_ = 0, broken_entries_ = 0;
  std::set<uint64_t> windows_;
  std::vector<Mend> broken_, flags_;
};

}  // namespace spindle::qcow2
