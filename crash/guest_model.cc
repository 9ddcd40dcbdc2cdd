#include "crash/guest_model.h"

#include <algorithm>

namespace spindle::crash {

GuestModel::GuestModel(const History& history) : store_(history.contents.get()) {
  if (!history.has_guest) return;
  Position off_since = history.starts_write_back ? kNever : 0;
  for (const GuestEvent& event : history.guest) {
    if (event.kind == GuestEvent::Kind::CacheOn && off_since != kNever) {
      if (off_since < event.submitted) off_.emplace_back(off_since, event.submitted);
      off_since = kNever;
    }
    if (event.kind == GuestEvent::Kind::CacheOff && off_since == kNever && !event.failed)
      off_since = event.completed;
  }
  if (off_since != kNever) off_.emplace_back(off_since, kNever);

  for (const auto& [sector, content] : history.guest_start) {
    sectors_[sector].versions.push_back({0, 0, 0, content, false});
  }
  sizes_.push_back({0, 0, 0, history.guest_size});
  for (std::size_t i = 0; i < history.guest.size(); ++i) {
    const GuestEvent& event = history.guest[i];
    const Position durable = durable_from(history, i);
    const uint64_t end = event.offset + event.length;
    switch (event.kind) {
      case GuestEvent::Kind::Write:
        add(event.offset, end, event, durable, true, false);
        break;
      case GuestEvent::Kind::Zero:
        add(event.offset, end, event, durable, false, false);
        break;
      case GuestEvent::Kind::Discard:
        add(event.offset, end, event, durable, false, true);
        break;
      case GuestEvent::Kind::Resize:
        sizes_.push_back({event.submitted, event.completed, durable, event.length});
        if (event.length < event.offset) add(event.length, event.offset, event, durable, false, false, true);
        if (event.length > event.offset) zero_known(event.offset, event.length, event, durable);
        break;
      default:
        break;
    }
  }
  for (auto& [sector, state] : sectors_) {
    touched_.push_back(sector);
    for (const Version& version : state.versions) {
      changes_.emplace_back(version.submitted, sector);
      if (version.durable != kNever) changes_.emplace_back(version.durable, sector);
    }
  }
  std::ranges::sort(touched_);
  std::ranges::sort(changes_);
  move_to(0);
}

GuestModel::GuestModel(const ContentStore& contents, Expectation expectation)
    : store_(&contents), legal_sizes_(std::move(expectation.sizes)) {
  for (auto& [sector, legal] : expectation.sectors) {
    touched_.push_back(sector);
    sectors_[sector].legal = std::move(legal);
  }
}

// The earliest position from which on the event's effect is promised.
Position GuestModel::durable_from(const History& history, std::size_t index) const {
  const GuestEvent& event = history.guest[index];
  if (event.failed || event.completed == kNever) return kNever;
  if (event.fua) return event.completed;
  for (const auto& [from, to] : off_) {
    if (event.completed >= from && event.completed < to) return event.completed;
  }
  Position durable = kNever;
  // What flushes it may have been submitted before it, in the case of a toggle.
  for (std::size_t i = 0; i < history.guest.size(); ++i) {
    const GuestEvent& other = history.guest[i];
    if (i == index || other.failed || other.completed == kNever) continue;
    const bool flushes = other.kind == GuestEvent::Kind::Flush && other.submitted > event.completed;
    const bool turns_off = other.kind == GuestEvent::Kind::CacheOff && other.completed > event.completed;
    if (flushes || turns_off) durable = std::min(durable, other.completed);
  }
  return durable;
}

void GuestModel::add(uint64_t from, uint64_t to, const GuestEvent& event, Position durable, bool pattern,
                     bool adds_only, bool silent) {
  for (uint64_t sector = from / kSector; sector < (to + kSector - 1) / kSector; ++sector) {
    auto& versions = sectors_[sector].versions;
    if (versions.empty()) versions.push_back({0, 0, 0, kZeroContent, false});
    ContentId content = kZeroContent;
    if (pattern) {
      Sector bytes;
      fill_pattern(bytes.data(), sector, event.write);
      // It was put into the store when it was recorded; nothing is added here, where threads share it.
      content = store_->find(bytes.data());
    }
    versions.push_back({event.submitted, event.completed, durable, content, adds_only, silent});
  }
}

// Sectors that were never written are zeroes without being told.
void GuestModel::zero_known(uint64_t from, uint64_t to, const GuestEvent& event, Position durable) {
  for (auto& [sector, state] : sectors_) {
    if (sector >= from / kSector && sector < (to + kSector - 1) / kSector)
      state.versions.push_back({event.submitted, event.completed, durable, kZeroContent, false});
  }
}

void GuestModel::move_to(Position at) {
  std::vector<uint64_t> changed;
  while (next_change_ < changes_.size() && changes_[next_change_].first < at) {
    changed.push_back(changes_[next_change_++].second);
  }
  std::ranges::sort(changed);
  const auto rest = std::ranges::unique(changed);
  changed.erase(rest.begin(), rest.end());
  for (const uint64_t sector : changed) {
    auto& state = sectors_[sector];
    state.legal.clear();
    // What a durable version has taken the place of completed before that one was submitted.
    Position superseded_before = 0;
    for (const Version& version : state.versions) {
      if (version.durable < at && !version.adds_only)
        superseded_before = std::max(superseded_before, version.submitted);
    }
    for (const Version& version : state.versions) {
      if (version.submitted >= at && version.submitted != 0) continue;
      if (version.completed < superseded_before) continue;
      if (version.silent && !(version.durable < at)) continue;
      if (std::ranges::find(state.legal, version.content) == state.legal.end())
        state.legal.push_back(version.content);
    }
  }
  legal_sizes_.clear();
  Position superseded_before = 0;
  for (const SizeVersion& version : sizes_) {
    if (version.durable < at) superseded_before = std::max(superseded_before, version.submitted);
  }
  for (const SizeVersion& version : sizes_) {
    if (version.submitted >= at && version.submitted != 0) continue;
    if (version.completed >= superseded_before) legal_sizes_.push_back(version.size);
  }
}

}  // namespace spindle::crash
