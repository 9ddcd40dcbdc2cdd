// SectorImage: a file as a table of contents by sector, that can be taken back.
//
// Everything that changes it is noted, and undo() brings back what a mark() saw: the sectors, the size, and
// the contents pushed since. So one image serves a thread for all states: apply the operations of a state,
// look, take them back; and states that begin alike share the beginning.
//
// hash() is kept up to date with each change (XOR over sectors of a mix of place and content, and the size),
// so two equal images have equal hashes whatever led to them. Beyond the size everything is zero.
//
// Threading: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "crash/content.h"

namespace spindle::crash {

/// The largest file that is looked at: its table alone would take more memory than a table should.
inline constexpr uint64_t kLargestImage = 1ull << 40;

class SectorImage {
 public:
  /// `contents` must be where new contents go, and outlive this.
  explicit SectorImage(ContentStore& contents) : contents_(&contents) {}
  /// A copy of what `other` holds now, without its past. `contents` stands on other's store or is it.
  SectorImage(const SectorImage& other, ContentStore& contents);
  SectorImage(SectorImage&&) = default;
  SectorImage& operator=(SectorImage&&) = delete;

  uint64_t size() const { return size_; }
  uint64_t hash() const { return hash_ ^ mix(size_ + 1); }
  ContentStore& contents() const { return *contents_; }

  ContentId at(uint64_t sector) const {
    const uint64_t chunk = sector / kChunk;
    return chunk < chunks_.size() && chunks_[chunk] ? chunks_[chunk]->ids[sector % kChunk] : kZeroContent;
  }
  /// The first sector from `sector` on, below `end`, that is not zeroes; `end` if there is none.
  uint64_t next_data(uint64_t sector, uint64_t end) const;
  /// The first that is.
  uint64_t next_hole(uint64_t sector, uint64_t end) const;

  void set(uint64_t sector, ContentId id);
  /// Bytes [from, to) of the sector from content `id`, the rest as it was.
  void merge(uint64_t sector, ContentId id, uint32_t from, uint32_t to);
  /// These three clip nothing and never change the size; the ranges lie inside kLargestImage.
  void write(uint64_t offset, const std::byte* bytes, uint64_t length);
  void zero(uint64_t offset, uint64_t length);
  void read(uint64_t offset, std::byte* bytes, uint64_t length) const;
  /// What is cut off is gone: growing again brings zeroes.
  void resize(uint64_t size);
  /// A write beyond the end made the file longer.
  void extend_to(uint64_t end) {
    if (end > size_) resize(end);
  }

  struct Mark {
    std::size_t changes;
    std::size_t contents;
  };
  Mark mark() const { return {changes_.size(), contents_->mark()}; }
  bool changed_since(Mark mark) const { return changes_.size() != mark.changes; }
  void undo(Mark mark);
  /// What was done stays done.
  void forget_past() { changes_.clear(); }

 private:
  static constexpr uint64_t kChunk = 128;
  struct Chunk {
    std::array<ContentId, kChunk> ids{};
    uint32_t used = 0;  // that are not zero
  };
  struct Change {
    uint64_t sector;  // kSizeChange: the size
    uint64_t before;
  };
  static constexpr uint64_t kSizeChange = ~0ull;

  void put(uint64_t sector, ContentId id);
  uint64_t share(uint64_t sector, ContentId id) const {
    return id == kZeroContent ? 0 : mix(contents_->hash(id) + mix(sector));
  }

  ContentStore* contents_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  uint64_t size_ = 0;
  uint64_t hash_ = 0;
  std::vector<Change> changes_;
};

}  // namespace spindle::crash
