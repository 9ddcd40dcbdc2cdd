#include "crash/enumerate.h"

#include <algorithm>
#include <random>

namespace spindle::crash {
namespace {

// Few choices beyond the budget are still gone through: many lead to the same state.
constexpr uint64_t kChoicesPerState = 4;

class Enumeration {
 public:
  Enumeration(const EpochCursor& cursor, const History& history, SectorImage& image, uint64_t budget,
              uint64_t seed, const std::function<bool(const Choices&)>& visit)
      : cursor_(cursor),
        doubts_(cursor.doubts()),
        history_(history),
        image_(image),
        budget_(budget),
        random_(seed),
        visit_(visit),
        choices_(doubts_.size(), 0) {}

  EpochOutcome run() {
    const uint64_t all = cursor_.combinations();
    if (all / kChoicesPerState <= budget_) {
      descend(0);
      // The budget may have ended it.
      outcome_.complete = !outcome_.stopped && !full_;
    } else {
      sample();
    }
    return outcome_;
  }

 private:
  bool over() const { return outcome_.stopped || full_; }

  void look() {
    if (!seen_.insert(image_.hash()).second) return;
    if (outcome_.states == budget_) {
      full_ = true;
      return;
    }
    ++outcome_.states;
    if (!visit_(choices_)) outcome_.stopped = true;
  }

  void descend(std::size_t doubt) {
    if (doubt == doubts_.size()) return look();
    for (std::size_t i = 0; i < doubts_[doubt].variants.size() && !over(); ++i) {
      choices_[doubt] = static_cast<uint16_t>(i);
      const auto mark = image_.mark();
      cursor_.apply_choice(doubt, choices_);
      descend(doubt + 1);
      image_.undo(mark);
    }
  }

  void try_choices() {
    const auto mark = image_.mark();
    cursor_.apply_all(choices_);
    look();
    image_.undo(mark);
  }

  static constexpr uint16_t kAbsent = 0;  // of a forced one that is in whole
  uint16_t present(std::size_t doubt) const {
    const auto& variants = doubts_[doubt].variants;
    return static_cast<uint16_t>(variants[0].whole || variants.size() == 1 ? 0 : 1);
  }
  template <typename Has>
  void try_subset(Has has) {
    if (over()) return;
    for (std::size_t i = 0; i < doubts_.size(); ++i) choices_[i] = has(i) ? present(i) : kAbsent;
    try_choices();
  }

  void sample() {
    const std::size_t count = doubts_.size();
    // An epoch of very many operations is not to be filled with the first stratum alone.
    const std::size_t step = std::max<std::size_t>(1, count * 10 / std::max<uint64_t>(budget_, 1));
    std::vector<bool> data(count);
    for (std::size_t i = 0; i < count; ++i)
      data[i] = history_.is_data(history_.operations[doubts_[i].operation]);
    try_subset([](std::size_t) { return true; });
    try_subset([](std::size_t) { return false; });
    try_subset([&](std::size_t i) { return data[i]; });
    try_subset([&](std::size_t i) { return !data[i]; });
    for (std::size_t at = 0; at < count && !over(); at += step) {
      try_subset([&](std::size_t i) { return i != at; });
      try_subset([&](std::size_t i) { return i == at; });
      try_subset([&](std::size_t i) { return i < at; });
      try_subset([&](std::size_t i) { return i >= at; });
      try_subset([&](std::size_t i) { return data[i] || i < at; });
      try_subset([&](std::size_t i) { return !data[i] || i < at; });
      for (std::size_t torn = 2; torn < doubts_[at].variants.size() && !over(); ++torn) {
        for (const bool others : {true, false}) {
          for (std::size_t i = 0; i < count; ++i) choices_[i] = others ? present(i) : kAbsent;
          choices_[at] = static_cast<uint16_t>(torn);
          if (!over()) try_choices();
        }
      }
    }
    for (uint64_t attempts = budget_ * kChoicesPerState; attempts > 0 && !over(); --attempts) {
      const uint64_t density = 1 + random_() % 15;
      const bool tears = random_() % 2 == 0;
      for (std::size_t i = 0; i < count; ++i) {
        choices_[i] = random_() % 16 < density ? present(i) : kAbsent;
        if (tears && random_() % 8 == 0)
          choices_[i] = static_cast<uint16_t>(random_() % doubts_[i].variants.size());
      }
      try_choices();
    }
  }

  const EpochCursor& cursor_;
  const std::vector<Doubt>& doubts_;
  const History& history_;
  SectorImage& image_;
  uint64_t budget_;
  std::mt19937_64 random_;
  const std::function<bool(const Choices&)>& visit_;
  Choices choices_;
  std::unordered_set<uint64_t> seen_;
  EpochOutcome outcome_;
  bool full_ = false;
};

}  // namespace

EpochOutcome enumerate(const EpochCursor& cursor, const History& history, SectorImage& image, uint64_t budget,
                       uint64_t seed, const std::function<bool(const Choices&)>& visit) {
  return Enumeration(cursor, history, image, budget, seed, visit).run();
}

}  // namespace spindle::crash
