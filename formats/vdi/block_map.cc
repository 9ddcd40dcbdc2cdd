#include "formats/vdi/block_map.h"

#include <algorithm>
#include <cstring>

#include "block/little_endian.h"

namespace spindle::vdi {
namespace {

constexpr std::size_t kPiece = 1 << 20;

}  // namespace

BlockMap::BlockMap(uint32_t map_offset, uint32_t blocks)
    : map_offset_(map_offset), entries_(blocks, kFree), assigned_(blocks) {
  const std::size_t used = blocks % kEntriesPerSector * sizeof(uint32_t);
  if (used != 0) rest_.resize(kSector - used);
}

Task<Result<BlockMap>> BlockMap::read(Node& file, const Header& header) {
  BlockMap map(header.map_offset, header.blocks);
  // The last sector may be one that the file does not have whole; what is beyond its end is zeroes.
  const uint64_t whole = header.map_bytes() + map.rest_.size();
  const uint64_t there = std::min(whole, file.size() - header.map_offset);
  std::vector<std::byte> piece(std::min<uint64_t>(whole, kPiece));
  for (uint64_t at = 0; at < whole; at += piece.size()) {
    const std::size_t wanted = std::min<uint64_t>(piece.size(), whole - at);
    const std::size_t length = at < there ? std::min<uint64_t>(wanted, there - at) : 0;
    std::fill(piece.begin() + static_cast<std::ptrdiff_t>(length), piece.end(), std::byte{});
    if (length != 0) {
      const iovec part{piece.data(), length};
      auto read = co_await file.read(header.map_offset + at, Buffers(std::span(&part, 1)));
      if (!read) co_return std::unexpected(std::move(read.error()));
    }
    const std::size_t first = at / sizeof(uint32_t);
    const std::size_t count = std::min<std::size_t>(wanted / sizeof(uint32_t), header.blocks - first);
    for (std::size_t i = 0; i < count; ++i)
      map.entries_[first + i] = get32(piece.data() + i * sizeof(uint32_t));
    if (const std::size_t bytes = count * sizeof(uint32_t); bytes < wanted)
      std::memcpy(map.rest_.data(), piece.data() + bytes, wanted - bytes);
  }
  co_return map;
}

std::vector<std::byte> BlockMap::encode(std::size_t first_sector, std::size_t sectors) const {
  std::vector<std::byte> bytes(sectors * kSector);
  const std::size_t first = first_sector * kEntriesPerSector;
  const std::size_t end = std::min(first + sectors * kEntriesPerSector, entries_.size());
  for (std::size_t block = first; block < end; ++block) {
    put32(bytes.data() + (block - first) * sizeof(uint32_t), assigned_[block] ? kFree : entries_[block]);
  }
  const std::size_t used = (end - first) * sizeof(uint32_t);
  if (used < bytes.size()) std::memcpy(bytes.data() + used, rest_.data(), bytes.size() - used);
  return bytes;
}

std::vector<Commit::Write> BlockMap::take_changed() {
  std::vector<Commit::Write> writes;
  for (auto sector = changed_.begin(); sector != changed_.end();) {
    const std::size_t first = *sector;
    std::size_t count = 0;
    for (; sector != changed_.end() && *sector == first + count; ++sector) ++count;
    writes.push_back({.offset = map_offset_ + first * kSector, .bytes = encode(first, count)});
  }
  taken_.merge(changed_);
  changed_.clear();
  return writes;
}

BlockMap::Used BlockMap::used() const {
  Used used;
  std::ranges::copy_if(entries_, std::back_inserter(used.places), is_place);
  std::ranges::sort(used.places);
  const auto twice = std::ranges::adjacent_find(used.places);
  if (twice != used.places.end()) {
    used.twice = *twice;
    const auto again = std::ranges::unique(used.places);
    used.places.erase(again.begin(), again.end());
  }
  return used;
}

}  // namespace spindle::vdi
