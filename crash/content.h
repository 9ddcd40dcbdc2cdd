// What sectors hold, by number. An image here is a table of numbers, not of bytes: a state of the medium
// differs from the next in a few sectors, and most sectors of all states hold one of few contents.
//
// Content 0 is zeroes, always. A store may stand on another one, which is then frozen: numbers below
// base->count() are the base's. The history's store is filled while it is recorded and only read afterwards,
// so any number of threads may stand on it; what a thread makes by itself (a sector written in part, what a
// format writes into a state) goes into a store of its own, as on a stack: release() forgets what came after
// a mark(), and memory is kept for the next.
//
// Hashes are of the content, never of its number, so that two threads that number differently agree.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace spindle::crash {

inline constexpr uint64_t kSector = 512;
using ContentId = uint32_t;
inline constexpr ContentId kZeroContent = 0;
using Sector = std::array<std::byte, kSector>;

/// Spreads the bits of a number; a bijection.
constexpr uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

/// 0 for zeroes, else not 0 but for bad luck.
uint64_t hash_of(const std::byte* sector);
bool is_zero(const std::byte* sector);

class ContentStore {
 public:
  explicit ContentStore(const ContentStore* base = nullptr);
  ContentStore(const ContentStore&) = delete;
  ContentStore& operator=(const ContentStore&) = delete;

  /// The number of this content; one that is there already is found again. Only in a store without a base.
  ContentId intern(const std::byte* sector);
  /// The number of a content that intern() has seen; zeroes if it has not.
  ContentId find(const std::byte* sector) const;
  /// A number for this content, on top of the stack. Zeroes are 0 here too.
  ContentId push(const std::byte* sector);

  const std::byte* bytes(ContentId id) const {
    return id < first_ ? base_->bytes(id) : place(id - first_).data();
  }
  uint64_t hash(ContentId id) const { return id < first_ ? base_->hash(id) : hashes_[id - first_]; }
  ContentId count() const { return first_ + static_cast<ContentId>(hashes_.size()); }

  std::size_t mark() const { return hashes_.size(); }
  void release(std::size_t mark) { hashes_.resize(mark); }

 private:
  static constexpr std::size_t kChunk = 256;
  using Chunk = std::array<Sector, kChunk>;

  const Sector& place(std::size_t index) const { return (*chunks_[index / kChunk])[index % kChunk]; }
  ContentId append(const std::byte* sector, uint64_t hash);

  const ContentStore* base_;
  ContentId first_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<uint64_t> hashes_;
  std::unordered_multimap<uint64_t, ContentId> known_;
};

// ---- content that says where it came from ----

/// Fills `out` with what write number `write` puts into guest sector `sector`: like no other sector's and no
/// other write's, in each of its 64 words, so that what is read in the wrong place, late or in part shows.
void fill_pattern(std::byte* out, uint64_t sector, uint32_t write);

/// What a sector turned out to hold.
struct Origin {
  enum class Kind : uint8_t {
    Zero,
    Pattern,  ///< whole, of `sector` and `write`
    Torn,     ///< begins like that pattern, but is not all of it
    Unknown,  ///< no write of the guest put it anywhere
  } kind = Kind::Unknown;
  uint64_t sector = 0;
  uint32_t write = 0;
};
Origin origin_of(const std::byte* sector);

}  // namespace spindle::crash
