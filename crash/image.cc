#include "crash/image.h"

#include <algorithm>
#include <cstring>

namespace spindle::crash {

SectorImage::SectorImage(const SectorImage& other, ContentStore& contents)
    : contents_(&contents), size_(other.size_), hash_(other.hash_) {
  chunks_.resize(other.chunks_.size());
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    if (other.chunks_[i] && other.chunks_[i]->used != 0)
      chunks_[i] = std::make_unique<Chunk>(*other.chunks_[i]);
  }
}

uint64_t SectorImage::next_data(uint64_t sector, uint64_t end) const {
  while (sector < end) {
    const uint64_t chunk = sector / kChunk;
    if (chunk >= chunks_.size()) return end;
    if (!chunks_[chunk] || chunks_[chunk]->used == 0) {
      sector = (chunk + 1) * kChunk;
      continue;
    }
    if (chunks_[chunk]->ids[sector % kChunk] != kZeroContent) return sector;
    ++sector;
  }
  return end;
}

uint64_t SectorImage::next_hole(uint64_t sector, uint64_t end) const {
  while (sector < end && at(sector) != kZeroContent) ++sector;
  return std::min(sector, end);
}

void SectorImage::put(uint64_t sector, ContentId id) {
  const uint64_t chunk = sector / kChunk;
  if (chunk >= chunks_.size()) {
    if (id == kZeroContent) return;
    chunks_.resize(chunk + 1);
  }
  if (!chunks_[chunk]) {
    if (id == kZeroContent) return;
    chunks_[chunk] = std::make_unique<Chunk>();
  }
  ContentId& place = chunks_[chunk]->ids[sector % kChunk];
  hash_ ^= share(sector, place) ^ share(sector, id);
  chunks_[chunk]->used +=
      static_cast<uint32_t>(id != kZeroContent) - static_cast<uint32_t>(place != kZeroContent);
  place = id;
}

void SectorImage::set(uint64_t sector, ContentId id) {
  const ContentId before = at(sector);
  if (before == id) return;
  changes_.push_back({sector, before});
  put(sector, id);
}

void SectorImage::merge(uint64_t sector, ContentId id, uint32_t from, uint32_t to) {
  if (from == 0 && to == kSector) return set(sector, id);
  Sector merged;
  std::memcpy(merged.data(), contents_->bytes(at(sector)), kSector);
  std::memcpy(merged.data() + from, contents_->bytes(id) + from, to - from);
  set(sector, contents_->push(merged.data()));
}

void SectorImage::write(uint64_t offset, const std::byte* bytes, uint64_t length) {
  while (length != 0) {
    const uint64_t within = offset % kSector;
    const uint64_t part = std::min(length, kSector - within);
    if (part == kSector) {
      set(offset / kSector, contents_->push(bytes));
    } else {
      Sector merged;
      std::memcpy(merged.data(), contents_->bytes(at(offset / kSector)), kSector);
      std::memcpy(merged.data() + within, bytes, part);
      set(offset / kSector, contents_->push(merged.data()));
    }
    offset += part;
    bytes += part;
    length -= part;
  }
}

void SectorImage::zero(uint64_t offset, uint64_t length) {
  const uint64_t end = offset + length;
  while (offset < end) {
    const uint64_t within = offset % kSector;
    if (within == 0 && end - offset >= kSector) {
      const uint64_t last = end / kSector;
      for (uint64_t sector = next_data(offset / kSector, last); sector < last;
           sector = next_data(sector + 1, last)) {
        set(sector, kZeroContent);
      }
      offset = last * kSector;
      continue;
    }
    const uint64_t part = std::min(end - offset, kSector - within);
    merge(offset / kSector, kZeroContent, static_cast<uint32_t>(within),
          static_cast<uint32_t>(within + part));
    offset += part;
  }
}

void SectorImage::read(uint64_t offset, std::byte* bytes, uint64_t length) const {
  while (length != 0) {
    const uint64_t within = offset % kSector;
    const uint64_t part = std::min(length, kSector - within);
    const ContentId id = at(offset / kSector);
    if (id == kZeroContent) {
      std::memset(bytes, 0, part);
    } else {
      std::memcpy(bytes, contents_->bytes(id) + within, part);
    }
    offset += part;
    bytes += part;
    length -= part;
  }
}

void SectorImage::resize(uint64_t size) {
  if (size == size_) return;
  if (size < size_) zero(size, (size_ + kSector - 1) / kSector * kSector - size);
  changes_.push_back({kSizeChange, size_});
  size_ = size;
}

void SectorImage::undo(Mark mark) {
  while (changes_.size() > mark.changes) {
    const Change change = changes_.back();
    changes_.pop_back();
    if (change.sector == kSizeChange) {
      size_ = change.before;
    } else {
      put(change.sector, static_cast<ContentId>(change.before));
    }
  }
  contents_->release(mark.contents);
}

}  // namespace spindle::crash
