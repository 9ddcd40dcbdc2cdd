#include "crash/epoch.h"

#include <algorithm>

namespace spindle::crash {
namespace {

// How many that an operation was in flight with are told apart; with more there are states that are not
// looked at.
constexpr std::size_t kMostTogether = 16;

bool meet(const Operation& a, const Operation& b) {
  return a.span().overlaps(b.span());
}

// The units of `span`, cut where a unit of the medium ends.
std::vector<ByteSpan> units_of(const ByteSpan& span, uint32_t unit) {
  std::vector<ByteSpan> units;
  for (uint64_t at = span.from; at < span.to;) {
    const uint64_t to = std::min(span.to, (at / unit + 1) * unit);
    units.push_back({at, to});
    at = to;
  }
  return units;
}

// `part` without what `cut` names.
void subtract(const std::vector<ByteSpan>& cut, std::vector<ByteSpan>& parts) {
  for (const ByteSpan& hole : cut) {
    std::vector<ByteSpan> left;
    for (const ByteSpan& part : parts) {
      if (!part.overlaps(hole)) {
        left.push_back(part);
        continue;
      }
      if (part.from < hole.from) left.push_back({part.from, hole.from});
      if (hole.to < part.to) left.push_back({hole.to, part.to});
    }
    parts = std::move(left);
  }
}

}  // namespace

EpochCursor::EpochCursor(const History& history, SectorImage& image, Tearing tearing)
    : history_(history), image_(image), tearing_(tearing) {}

void EpochCursor::move_to(Position point) {
  while (next_ < history_.operations.size() && history_.operations[next_].submitted < point) {
    if (history_.operations[next_].changes()) unsettled_.push_back(next_);
    ++next_;
  }
  settle(point);
  make_doubts(point);
}

void EpochCursor::settle(Position point) {
  std::vector<std::size_t> durable;
  for (const std::size_t index : unsettled_) {
    if (history_.operations[index].durable < point) durable.push_back(index);
  }
  std::ranges::sort(durable, {}, [&](std::size_t index) { return history_.operations[index].completed; });
  std::vector<std::size_t> settled;
  for (const std::size_t index : durable) {
    const Operation& operation = history_.operations[index];
    const bool blocked = std::ranges::any_of(unsettled_, [&](std::size_t other_index) {
      if (other_index == index || std::ranges::find(settled, other_index) != settled.end()) return false;
      const Operation& other = history_.operations[other_index];
      if (other.submitted > operation.completed || !meet(operation, other)) return false;
      return !(other.durable < point) || other.completed < operation.completed;
    });
    if (blocked) continue;
    apply(operation, image_);
    settled.push_back(index);
  }
  std::erase_if(unsettled_,
                [&](std::size_t index) { return std::ranges::find(settled, index) != settled.end(); });
  image_.forget_past();
}

void EpochCursor::make_doubts(Position point) {
  doubts_.clear();
  // Whatever must lie under another completed before it, so this order is one of those that are possible.
  std::vector<std::size_t> order = unsettled_;
  std::ranges::stable_sort(order, {},
                           [&](std::size_t index) { return history_.operations[index].completed; });
  for (const std::size_t index : order) {
    const Operation& operation = history_.operations[index];
    Doubt doubt{.operation = index, .forced = operation.durable < point, .together = {}, .variants = {}};
    if (operation.kind != Operation::Kind::Resize) {
      for (std::size_t i = 0; i < doubts_.size(); ++i) {
        const Operation& other = history_.operations[doubts_[i].operation];
        if (other.kind == Operation::Kind::Resize || !other.concurrent_with(operation) ||
            !meet(other, operation) || doubt.together.size() == kMostTogether)
          continue;
        // Of two that are durable the one that completed later lies on top.
        if (!doubt.forced || !doubts_[i].forced) doubt.together.push_back(i);
      }
    }
    doubt.variants = variants_of(operation, doubt);
    doubts_.push_back(std::move(doubt));
  }
}

std::vector<Variant> EpochCursor::variants_of(const Operation& operation, const Doubt& doubt) const {
  std::vector<Variant> variants;
  if (!operation.took_effect) return {Variant{}};
  if (!doubt.forced) variants.push_back({});
  variants.push_back({.parts = {operation.span()}, .whole = true});
  const std::vector<ByteSpan> units = operation.kind == Operation::Kind::Resize
                                          ? std::vector<ByteSpan>{}
                                          : units_of(operation.span(), tearing_.unit);
  const std::size_t count = units.size();
  const auto between = [&](std::size_t from, std::size_t to) {
    return ByteSpan{units[from].from, units[to - 1].to};
  };
  if (doubt.forced || count < 2) {
    // It does not tear.
  } else if (count <= tearing_.all_of) {
    for (uint32_t mask = 1; mask + 1 < 1u << count; ++mask) {
      Variant torn;
      for (std::size_t i = 0; i < count; ++i) {
        if (mask >> i & 1) torn.parts.push_back(units[i]);
      }
      variants.push_back(std::move(torn));
    }
  } else {
    variants.push_back({.parts = {between(0, 1)}});
    variants.push_back({.parts = {between(0, count - 1)}});
    variants.push_back({.parts = {between(0, count / 2)}});
    variants.push_back({.parts = {between(count / 2, count)}});
    variants.push_back({.parts = {between(count - 1, count)}});
    variants.push_back({.parts = {between(1, count)}});
    variants.push_back({.parts = {between(0, 1), between(count - 1, count)}});
  }
  if (doubt.together.empty()) return variants;
  // Under all, under each, and of two or three all ways.
  const auto many = static_cast<uint32_t>(doubt.together.size());
  std::vector<uint32_t> orders;
  if (many <= 3) {
    for (uint32_t mask = 1; mask < 1u << many; ++mask) orders.push_back(mask);
  } else {
    orders.push_back((1u << many) - 1);
    for (uint32_t i = 0; i < many; ++i) orders.push_back(1u << i);
  }
  const std::size_t over = variants.size();
  for (const uint32_t under : orders) {
    for (std::size_t i = 0; i < over; ++i) {
      if (variants[i].parts.empty()) continue;
      variants.push_back(variants[i]);
      variants.back().under = under;
    }
  }
  return variants;
}

uint64_t EpochCursor::combinations() const {
  uint64_t product = 1;
  for (const Doubt& doubt : doubts_) {
    if (__builtin_mul_overflow(product, doubt.variants.size(), &product)) return ~0ull;
  }
  return product;
}

std::vector<ByteSpan> EpochCursor::parts_of(std::size_t index, const Choices& choices) const {
  const Doubt& doubt = doubts_[index];
  const Variant& variant = doubt.variants[choices[index]];
  if (!history_.operations[doubt.operation].took_effect) return {};
  std::vector<ByteSpan> parts = variant.parts;
  for (std::size_t i = 0; variant.under != 0 && i < doubt.together.size(); ++i) {
    if ((variant.under >> i & 1) == 0) continue;
    // Only where the other one is still on top: what has since been put over it may not lie under this one.
    const std::size_t over = doubt.together[i];
    std::vector<ByteSpan> visible = parts_of(over, choices);
    for (std::size_t between = over + 1; between < index && !visible.empty(); ++between)
      subtract(parts_of(between, choices), visible);
    subtract(visible, parts);
  }
  return parts;
}

void EpochCursor::apply_choice(std::size_t index, const Choices& choices) const {
  const Doubt& doubt = doubts_[index];
  const Variant& variant = doubt.variants[choices[index]];
  const Operation& operation = history_.operations[doubt.operation];
  if (variant.under == 0) {
    for (const ByteSpan& part : variant.parts) apply(operation, part, image_);
  } else {
    for (const ByteSpan& part : parts_of(index, choices)) apply(operation, part, image_);
  }
}

}  // namespace spindle::crash
