// BlockMap: the map of a VDI image in memory, whole, and which of it the file does not have yet.
//
// An entry that is new goes through three states: assigned, when a place was chosen and data is on its way
// there; it reads from that place already, but is not written to the file. Marked, when data has arrived: the
// next commit takes it. Written, when that commit is durable. So the file never gets an entry whose first
// write failed.
//
// The unit that is written is a sector of entries.
//
// Threading: the node's reactor only.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "formats/commit/commit.h"
#include "formats/vdi/header.h"

namespace spindle::vdi {

class BlockMap {
 public:
  /// Reads what `header` says the file has. It lies inside the file (read_header).
  static Task<Result<BlockMap>> read(Node& file, const Header& header);
  /// All free, in nobody's file yet.
  BlockMap(uint32_t map_offset, uint32_t blocks);

  uint32_t blocks() const { return static_cast<uint32_t>(entries_.size()); }
  uint32_t operator[](uint32_t block) const { return entries_[block]; }
  const std::vector<uint32_t>& entries() const { return entries_; }

  /// Data for `block` is on its way to `place`.
  void assign(uint32_t block, uint32_t place) {
    entries_[block] = place;
    assigned_[block] = true;
  }
  bool assigned(uint32_t block) const { return assigned_[block]; }
  /// Data has arrived: the entry may be written.
  void mark(uint32_t block) {
    assigned_[block] = false;
    changed_.insert(block / kEntriesPerSector);
  }
  /// Another entry, which may be written at once.
  void set(uint32_t block, uint32_t entry) {
    entries_[block] = entry;
    mark(block);
  }

  /// Sectors that changed since they were last taken: written out they are what the file should have.
  std::vector<Commit::Write> take_changed();
  /// What was taken is written and durable; or has changed again.
  void taken_is_written() { taken_.clear(); }
  void restore_taken() {
    changed_.merge(taken_);
    taken_.clear();
  }
  bool changed() const { return !changed_.empty(); }
  uint64_t changed_bytes() const { return (changed_.size() + taken_.size()) * kSector; }

  /// Places in order, each once; and, if one is used by two entries, one of those.
  struct Used {
    std::vector<uint32_t> places;
    std::optional<uint32_t> twice;
  };
  Used used() const;

 private:
  std::vector<std::byte> encode(std::size_t first_sector, std::size_t sectors) const;

  uint32_t map_offset_ = 0;
  std::vector<uint32_t> entries_;
  std::vector<bool> assigned_;
  std::vector<std::byte> rest_;  // of the map's last sector, after the last entry: not ours
  std::set<std::size_t> changed_;
  std::set<std::size_t> taken_;
};

}  // namespace spindle::vdi
