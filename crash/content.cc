#include "crash/content.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace spindle::crash {
namespace {

constexpr std::size_t kWords = kSector / sizeof(uint64_t);
constexpr uint64_t kPatternMagic = 0x5350'4e44'4c43'5253ull;

uint64_t word_of(uint64_t sector, uint32_t write, std::size_t index) {
  return mix(mix(sector + 1) ^ (uint64_t{write} << 20) ^ index);
}

uint64_t load(const std::byte* sector, std::size_t index) {
  uint64_t word;
  std::memcpy(&word, sector + index * sizeof word, sizeof word);
  return word;
}

}  // namespace

bool is_zero(const std::byte* sector) {
  uint64_t any = 0;
  for (std::size_t i = 0; i < kWords; ++i) any |= load(sector, i);
  return any == 0;
}

uint64_t hash_of(const std::byte* sector) {
  // Four lanes, so that the multiplications of one do not wait for those of the others.
  constexpr uint64_t kOdd = 0x9e37'79b9'7f4a'7c15ull;
  uint64_t lane[4] = {1, 2, 3, 4};
  uint64_t any = 0;
  for (std::size_t i = 0; i < kWords; i += 4) {
    for (std::size_t j = 0; j < 4; ++j) {
      const uint64_t word = load(sector, i + j);
      any |= word;
      lane[j] = std::rotl((lane[j] ^ word) * kOdd, 29);
    }
  }
  if (any == 0) return 0;
  return mix(mix(mix(mix(lane[0]) + lane[1]) + lane[2]) + lane[3]);
}

ContentStore::ContentStore(const ContentStore* base) : base_(base), first_(base ? base->count() : 0) {
  if (!base_) append(Sector{}.data(), 0);
}

ContentId ContentStore::append(const std::byte* sector, uint64_t hash) {
  const std::size_t index = hashes_.size();
  if (index / kChunk == chunks_.size()) chunks_.push_back(std::make_unique<Chunk>());
  std::memcpy((*chunks_[index / kChunk])[index % kChunk].data(), sector, kSector);
  hashes_.push_back(hash);
  return first_ + static_cast<ContentId>(index);
}

ContentId ContentStore::find(const std::byte* sector) const {
  const auto [from, to] = known_.equal_range(hash_of(sector));
  for (auto it = from; it != to; ++it) {
    if (std::memcmp(bytes(it->second), sector, kSector) == 0) return it->second;
  }
  return kZeroContent;
}

ContentId ContentStore::intern(const std::byte* sector) {
  assert(!base_);
  const uint64_t hash = hash_of(sector);
  if (hash == 0) return kZeroContent;
  if (const ContentId known = find(sector); known != kZeroContent) return known;
  const ContentId id = append(sector, hash);
  known_.emplace(hash, id);
  return id;
}

ContentId ContentStore::push(const std::byte* sector) {
  const uint64_t hash = hash_of(sector);
  return hash == 0 ? kZeroContent : append(sector, hash);
}

void fill_pattern(std::byte* out, uint64_t sector, uint32_t write) {
  const uint64_t head[3] = {kPatternMagic, sector, write};
  std::memcpy(out, head, sizeof head);
  for (std::size_t i = std::size(head); i < kWords; ++i) {
    const uint64_t word = word_of(sector, write, i);
    std::memcpy(out + i * sizeof word, &word, sizeof word);
  }
}

Origin origin_of(const std::byte* sector) {
  if (is_zero(sector)) return {.kind = Origin::Kind::Zero};
  if (load(sector, 0) != kPatternMagic || load(sector, 2) > UINT32_MAX) return {};
  Origin origin{.kind = Origin::Kind::Pattern,
                .sector = load(sector, 1),
                .write = static_cast<uint32_t>(load(sector, 2))};
  for (std::size_t i = 3; i < kWords; ++i) {
    if (load(sector, i) != word_of(origin.sector, origin.write, i)) origin.kind = Origin::Kind::Torn;
  }
  return origin;
}

}  // namespace spindle::crash
