#include "crash/history.h"

#include <fmt/format.h>

#include <algorithm>

namespace spindle::crash {

std::string describe(const Operation& operation) {
  std::string text;
  switch (operation.kind) {
    case Operation::Kind::Write:
      text = fmt::format("write of {} bytes at {}", operation.length, operation.offset);
      break;
    case Operation::Kind::Zero:
      text = fmt::format("zeroes{} of {} bytes at {}", operation.unmap ? " (punched)" : "", operation.length,
                         operation.offset);
      break;
    case Operation::Kind::Discard:
      text = fmt::format("discard of {} bytes at {}", operation.length, operation.offset);
      break;
    case Operation::Kind::Flush:
      text = "flush";
      break;
    case Operation::Kind::Resize:
      text = fmt::format("resize from {} to {} bytes", operation.offset, operation.length);
      break;
  }
  if (operation.fua) text += ", FUA";
  if (operation.failed) text += ", failed";
  return text;
}

void History::finish() {
  struct Flush {
    Position submitted, completed;
  };
  std::vector<Flush> flushes;
  for (const Operation& operation : operations) {
    if (operation.kind == Operation::Kind::Flush && operation.completed != kNever && !operation.failed)
      flushes.push_back({operation.submitted, operation.completed});
  }
  // By submission; the earliest completion of any flush submitted from there on.
  std::vector<Position> earliest(flushes.size() + 1, kNever);
  for (std::size_t i = flushes.size(); i-- > 0;) {
    earliest[i] = std::min(earliest[i + 1], flushes[i].completed);
  }
  for (Operation& operation : operations) {
    operation.durable = kNever;
    if (operation.completed == kNever || operation.failed || !operation.changes()) continue;
    if (operation.fua) {
      operation.durable = operation.completed;
      continue;
    }
    const auto after = std::ranges::upper_bound(flushes, operation.completed, {}, &Flush::submitted);
    operation.durable = earliest[static_cast<std::size_t>(after - flushes.begin())];
  }
}

std::vector<Position> History::crash_points() const {
  std::vector<Position> points;
  for (const Operation& operation : operations) {
    if (operation.durable != kNever) points.push_back(operation.durable);
  }
  points.push_back(end);
  std::ranges::sort(points);
  const auto rest = std::ranges::unique(points);
  points.erase(rest.begin(), rest.end());
  return points;
}

bool History::is_data(const Operation& operation) const {
  if (operation.kind == Operation::Kind::Resize) return false;
  const ByteSpan span = operation.span();
  return std::ranges::any_of(data_spans, [&](const ByteSpan& data) { return data.overlaps(span); });
}

std::vector<History::GrowthRace> History::growth_races() const {
  std::vector<GrowthRace> races;
  for (std::size_t growth = 0; growth < operations.size(); ++growth) {
    const Operation& grows = operations[growth];
    if (grows.kind != Operation::Kind::Resize || grows.length <= grows.offset) continue;
    for (std::size_t i = 0; i < operations.size() && operations[i].submitted < grows.completed; ++i) {
      const Operation& write = operations[i];
      if (write.kind == Operation::Kind::Write && write.offset + write.length > grows.offset &&
          write.concurrent_with(grows))
        races.push_back({i, growth});
    }
  }
  return races;
}

void apply(const Operation& operation, const ByteSpan& part, SectorImage& image) {
  switch (operation.kind) {
    case Operation::Kind::Write: {
      auto piece =
          std::ranges::lower_bound(operation.pieces, part.from / kSector, {}, &Operation::Piece::sector);
      for (; piece != operation.pieces.end() && piece->sector * kSector < part.to; ++piece) {
        const uint64_t begin = piece->sector * kSector;
        const uint64_t from = std::max(begin + piece->from, part.from);
        const uint64_t to = std::min(begin + piece->to, part.to);
        if (from >= to) continue;
        image.extend_to(to);
        image.merge(piece->sector, piece->content, static_cast<uint32_t>(from - begin),
                    static_cast<uint32_t>(to - begin));
      }
      break;
    }
    case Operation::Kind::Zero:
    case Operation::Kind::Discard: {
      if (!operation.took_effect) break;
      const bool keeps_size = operation.unmap || operation.kind == Operation::Kind::Discard;
      const uint64_t to = std::min(part.to, image.size());
      if (part.from < to) image.zero(part.from, to - part.from);
      if (!keeps_size) image.extend_to(part.to);
      break;
    }
    case Operation::Kind::Resize:
      image.resize(operation.length);
      break;
    case Operation::Kind::Flush:
      break;
  }
}

}  // namespace spindle::crash
