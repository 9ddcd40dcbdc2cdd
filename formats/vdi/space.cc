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
    for (; expected < place; ++expected) holes_.push_back(expected);
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
  const uint64_t had = grown_ - next_ + zeroed_.size();
  Turns::Turn turn(turns_);
  co_await turn;
  if (grown_ - next_ + zeroed_.size() > had) co_return Result<>{};  // somebody has made some meanwhile
  if (!holes_.empty()) co_return co_await reuse_holes();
  co_return co_await grow();
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
  for (uint64_t count = std::min({step_, kMostHolesAtOnce, uint64_t{holes_.size()}}); count != 0; --count) {
    const uint32_t place = holes_.back();
    if (options_.mutation != Mutation::HolesNotZeroed) {
      auto zeroed =
          co_await file_.write_zeroes(layout_.place_offset(place), layout_.block_size, {.unmap = true});
      if (!zeroed) co_return zeroed;
    }
    unready_holes_.insert(place);
    holes_.pop_back();
    zeroed_.push_back(place);
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
  auto grown = co_await file_.resize(layout_.place_offset(static_cast<uint32_t>(end)));
  if (!grown) co_return grown;
  touched_ = true;
  grown_ = end;
  co_return Result<>{};
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
