#include "formats/vdi/space.h"

#include <algorithm>
#include <utility>

namespace spindle::vdi {
namespace {

constexpr uint64_t kMostHolesAtOnce = 64;

}  // namespace

Space::Space(Node& file, const Header& header, const std::vector<uint32_t>& used, Options options,
             std::function<Task<Result<>>()> barrier)
    : file_(file),
      layout_(header),
      options_(options),
      barrier_(std::move(barrier)),
      turns_(file.reactor()),
      limit_(header.blocks),
      step_(options.ahead ? std::max<uint64_t>(options.step / header.block_size, 1) : 1),
      next_(used.empty() ? 0 : uint64_t{used.back()} + 1),
      first_(next_),
      grown_(next_) {
  uint32_t expected = 0;
  for (const uint32_t place : used) {
    if (place != expected) holes_.push_back({expected, place - expected});
    expected = place + 1;
  }
  std::ranges::reverse(holes_);
}

std::optional<uint32_t> Space::take() {
  std::optional<uint32_t> place;
  if (next_ < grown_) {
    place = static_cast<uint32_t>(next_++);
  } else if (!zeroed_.empty()) {
    place = zeroed_.back();
    zeroed_.pop_back();
  }
  if (place) touched_ = true;
  return place;
}

bool Space::low() const {
  return next_ + step_ / 2 > grown_ && holes_.empty() && grown_ < limit_;
}

bool Space::ready(uint32_t place) const {
  if (options_.mutation == Mutation::AllPlacesReady) return true;
  return place < first_ ? !unready_holes_.contains(place) : place < ready_;
}

Task<Result<>> Space::make_room() {
  const uint64_t before = rounds_;
  Turns::Turn turn(turns_);
  co_await turn;
  // Somebody has made some meanwhile. It may be gone again, or the caller's block have got a place by
  // another's doing: the caller looks again.
  if (rounds_ != before) co_return Result<>{};
  Result<> made;
  if (holes_.empty()) {
    made = co_await grow();
  } else {
    made = co_await reuse_holes();
  }
  if (made) ++rounds_;
  co_return made;
}

Task<Result<>> Space::settle() {
  if (settled_ || options_.mutation == Mutation::ReuseBeforeBarrier) co_return Result<>{};
  auto passed = co_await barrier_();
  if (passed) settled_ = true;
  co_return passed;
}

Task<Result<>> Space::reuse_holes() {
  auto settled = co_await settle();
  if (!settled) co_return settled;
  for (uint64_t count = std::min(step_, kMostHolesAtOnce); count != 0 && !holes_.empty(); --count) {
    const uint32_t place = holes_.back().first;
    if (options_.mutation != Mutation::HolesNotZeroed) {
      auto zeroed =
          co_await file_.write_zeroes(layout_.place_offset(place), layout_.block_size, {.unmap = true});
      if (!zeroed) co_return zeroed;
    }
    unready_holes_.insert(place);
    zeroed_.push_back(place);
    if (--holes_.back().count == 0) {
      holes_.pop_back();
    } else {
      ++holes_.back().first;
    }
  }
  co_return Result<>{};
}

Task<Result<>> Space::grow() {
  if (grown_ == first_ && file_.size() > layout_.place_offset(static_cast<uint32_t>(grown_))) {
    // What an interrupted run left behind the last block is no zeroes.
    auto settled = co_await settle();
    if (!settled) co_return settled;
    auto cut = co_await file_.resize(layout_.place_offset(static_cast<uint32_t>(grown_)));
    if (!cut) co_return cut;
  }
  // Never more places than blocks while there is a choice: other programs take a higher one for damage.
  const uint64_t end = grown_ < limit_ ? std::min(grown_ + step_, limit_) : grown_ + 1;
  if (end >= kZero) {
    co_return std::unexpected(
        Error{.kind = ErrorKind::NoSpace,
              .operation = "allocate in",
              .node = file_.facts().name,
              .detail = "the image has no place left; `spindle img check -r leaks` may make some"});
  }
  touched_ = true;
  for (uint64_t to = end;; to = grown_ + (to - grown_) / 2) {
    auto grown = co_await file_.resize(layout_.place_offset(static_cast<uint32_t>(to)));
    if (grown) {
      grown_ = to;
      co_return grown;
    }
    // A smaller step may fit. A growth that failed left the file as it was.
    if (grown.error()->kind != ErrorKind::NoSpace || to == grown_ + 1) co_return grown;
  }
}

void Space::freeze() {
  frozen_ = Frozen{count(), unready_holes_};
}

void Space::published() {
  settled_ = true;
  if (!frozen_) return;
  ready_ = std::max(ready_, frozen_->ready);
  for (const uint32_t place : frozen_->holes) unready_holes_.erase(place);
  frozen_.reset();
}

}  // namespace spindle::vdi
