#include "block/filters/held_map.h"

#include <algorithm>
#include <limits>

namespace spindle {
namespace {

uint64_t cost_of(const HeldMap::Piece& piece) {
  return HeldMap::kPieceCost + (piece.data ? piece.length : 0);
}

// The part [begin, end) of `piece`; shares its data.
HeldMap::Piece clipped(const HeldMap::Piece& piece, uint64_t begin, uint64_t end) {
  HeldMap::Piece part = piece;
  part.offset = std::max(begin, piece.offset);
  part.length = std::min(end, piece.end()) - part.offset;
  part.skip += part.offset - piece.offset;
  return part;
}

}  // namespace

HeldMap::Pieces::const_iterator HeldMap::first_ending_after(uint64_t offset) const {
  auto piece = pieces_.upper_bound(offset);
  if (piece != pieces_.begin()) {
    const auto before = std::prev(piece);
    if (before->second.end() > offset) return before;
  }
  return piece;
}

HeldMap::Pieces::iterator HeldMap::erase(Pieces::iterator piece) {
  bytes_ -= cost_of(piece->second);
  return pieces_.erase(piece);
}

void HeldMap::insert(Piece piece) {
  if (piece.data && piece.data->size() != piece.length) {  // a remainder: let go of the rest
    const std::byte* begin = piece.bytes();
    piece.data = std::make_shared<const std::vector<std::byte>>(begin, begin + piece.length);
    piece.skip = 0;
  }
  bytes_ += cost_of(piece);
  const uint64_t offset = piece.offset;
  pieces_.emplace(offset, std::move(piece));
}

void HeldMap::put(Piece piece) {
  if (piece.length == 0) return;
  cut(piece.offset, piece.end(), std::numeric_limits<uint64_t>::max());
  insert(std::move(piece));
}

void HeldMap::cut(uint64_t begin, uint64_t end, uint64_t order) {
  if (begin >= end || pieces_.empty()) return;
  const auto start = first_ending_after(begin);
  if (start == pieces_.end()) return;
  auto piece = pieces_.find(start->first);
  while (piece != pieces_.end() && piece->second.offset < end) {
    if (piece->second.order > order) {
      ++piece;
      continue;
    }
    const Piece old = std::move(piece->second);
    bytes_ -= cost_of(old);
    piece = pieces_.erase(piece);
    if (old.offset < begin) insert(clipped(old, old.offset, begin));
    if (old.end() > end) {
      insert(clipped(old, end, old.end()));
      return;
    }
  }
}

void HeldMap::drop_up_to(uint64_t order) {
  for (auto piece = pieces_.begin(); piece != pieces_.end();) {
    piece = piece->second.order <= order ? erase(piece) : std::next(piece);
  }
}

void HeldMap::clear() {
  pieces_.clear();
  bytes_ = 0;
}

std::vector<HeldMap::Piece> HeldMap::overlapping(uint64_t begin, uint64_t end) const {
  std::vector<Piece> result;
  for (auto piece = first_ending_after(begin); piece != pieces_.end() && piece->second.offset < end;
       ++piece) {
    result.push_back(clipped(piece->second, begin, end));
  }
  return result;
}

const HeldMap::Piece* HeldMap::at_or_after(uint64_t offset) const {
  const auto piece = first_ending_after(offset);
  return piece == pieces_.end() ? nullptr : &piece->second;
}

std::vector<HeldMap::Piece> HeldMap::all() const {
  std::vector<Piece> result;
  result.reserve(pieces_.size());
  for (const auto& [offset, piece] : pieces_) result.push_back(piece);
  return result;
}

}  // namespace spindle
