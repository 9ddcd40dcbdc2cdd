#include "crash/explore.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

namespace spindle::crash {
namespace {

// The share of the budget that each crash point gets: what a small one does not need goes to the others.
std::vector<uint64_t> shares_of(const History& history, const std::vector<Position>& points, Tearing tearing,
                                uint64_t budget) {
  ContentStore contents(history.contents.get());
  SectorImage image(history.base, contents);
  EpochCursor cursor(history, image, tearing);
  std::vector<std::pair<uint64_t, std::size_t>> needs;
  for (const Position point : points) {
    cursor.move_to(point);
    needs.emplace_back(cursor.combinations(), needs.size());
  }
  std::ranges::sort(needs);
  std::vector<uint64_t> shares(points.size());
  uint64_t left = budget;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const uint64_t share = std::min(needs[i].first, std::max<uint64_t>(1, left / (needs.size() - i)));
    shares[needs[i].second] = share;
    left -= std::min(left, share);
  }
  return shares;
}

class Explorer {
 public:
  Explorer(const History& history, const Subject& subject, const ExploreOptions& options)
      : history_(history),
        subject_(subject),
        options_(options),
        points_(history.crash_points()),
        shares_(shares_of(history, points_, options.tearing, options.states)) {}

  Result<Exploration> run() {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::unique_ptr<Reactor>> reactors;
    const auto jobs = static_cast<unsigned>(
        std::clamp<uint64_t>(options_.jobs, 1, std::max<std::size_t>(1, points_.size())));
    for (unsigned i = 0; i < jobs; ++i) {
      auto reactor = Reactor::create(64);
      if (!reactor) return std::unexpected(std::move(reactor.error()));
      reactors.push_back(std::move(*reactor));
    }
    std::vector<std::thread> threads;
    for (unsigned i = 1; i < jobs; ++i) threads.emplace_back([this, &reactors, i] { work(*reactors[i]); });
    work(*reactors[0]);
    for (auto& thread : threads) thread.join();
    whole_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    // Whichever thread came first: the examples are those of the earliest points.
    for (auto& [kind, examples] : whole_.examples) {
      std::ranges::sort(examples, {}, [](const BadExample& example) { return example.key.point; });
      if (examples.size() > options_.keep) examples.resize(options_.keep);
    }
    return std::move(whole_);
  }

 private:
  void work(Reactor& reactor) {
    ContentStore contents(history_.contents.get());
    SectorImage image(history_.base, contents);
    EpochCursor cursor(history_, image, options_.tearing);
    GuestModel model(history_);
    Judge judge(reactor, image, subject_, options_.depth);
    Exploration mine;
    for (;;) {
      const std::size_t index = next_++;
      if (index >= points_.size() || stopped()) break;
      cursor.move_to(points_[index]);
      model.move_to(points_[index]);
      const auto outcome = enumerate(
          cursor, history_, image, shares_[index], mix(options_.seed) ^ index, [&](const Choices& choices) {
            mine.distinct.insert(image.hash());
            Verdict verdict = judge.judge(history_.has_guest ? &model : nullptr, false);
            verdict.kinds &= ~history_.wrong_before;
            ++mine.judged;
            if (options_.progress) options_.progress->fetch_add(1, std::memory_order_relaxed);
            count(mine, verdict, {points_[index], choices});
            return !stopped();
          });
      ++mine.points;
      mine.complete_points += outcome.complete;
    }
    const std::lock_guard lock(mutex_);
    whole_.add(std::move(mine));
  }

  bool stopped() const { return options_.stop && options_.stop->load(std::memory_order_relaxed); }

  void count(Exploration& mine, const Verdict& verdict, const StateKey& key) const {
    if (!verdict.corrupt()) {
      ++(verdict.leaks != 0 ? mine.leaking : verdict.recovered ? mine.recovered : mine.clean);
      return;
    }
    ++mine.corrupt;
    for (std::size_t i = 0; i < kCorruptions; ++i) {
      const auto kind = static_cast<Corruption>(i);
      if (!verdict.has(kind)) continue;
      ++mine.by_kind[i];
      auto& examples = mine.examples[kind];
      if (examples.size() < options_.keep) examples.push_back({key, verdict});
    }
  }

  const History& history_;
  const Subject& subject_;
  const ExploreOptions& options_;
  std::vector<Position> points_;
  std::vector<uint64_t> shares_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  Exploration whole_;
};

}  // namespace

void Exploration::add(Exploration&& other) {
  judged += other.judged;
  distinct.merge(other.distinct);
  points += other.points;
  complete_points += other.complete_points;
  clean += other.clean;
  leaking += other.leaking;
  recovered += other.recovered;
  corrupt += other.corrupt;
  seconds += other.seconds;
  for (std::size_t i = 0; i < kCorruptions; ++i) by_kind[i] += other.by_kind[i];
  for (auto& [kind, list] : other.examples) {
    auto& mine = examples[kind];
    for (auto& example : list) mine.push_back(std::move(example));
  }
}

Result<Exploration> explore(const History& history, const Subject& subject, const ExploreOptions& options) {
  return Explorer(history, subject, options).run();
}

Laboratory::Laboratory(Reactor& reactor, const History& history, const Subject& subject, Tearing tearing,
                       Depth depth)
    : history_(history),
      contents_(history.contents.get()),
      image_(history.base, contents_),
      cursor_(history, image_, tearing),
      model_(history),
      judge_(reactor, image_, subject, depth) {}

void Laboratory::move_to(Position point) {
  cursor_.move_to(point);
  model_.move_to(point);
}

Verdict Laboratory::judge(const Choices& choices, bool describe) {
  const auto mark = image_.mark();
  cursor_.apply_all(choices);
  Verdict verdict = judge_.judge(history_.has_guest ? &model_ : nullptr, describe);
  image_.undo(mark);
  return verdict;
}

Choices minimise(Laboratory& laboratory, const Choices& choices, Corruption kind) {
  const auto& doubts = laboratory.cursor().doubts();
  Choices best = choices;
  const auto reached = [&](std::size_t i) { return !doubts[i].variants[best[i]].parts.empty(); };
  const auto still_bad = [&](const Choices& tried) { return laboratory.judge(tried, false).has(kind); };
  // Delta debugging: leaves out runs of operations, long runs first, until no single one can be left out.
  for (std::size_t run = std::max<std::size_t>(1, best.size() / 2); run >= 1;) {
    bool smaller = false;
    for (std::size_t at = best.size(); at > 0; at -= std::min(run, at)) {
      Choices tried = best;
      for (std::size_t i = at - std::min(run, at); i < at; ++i) {
        if (!doubts[i].forced) tried[i] = 0;
      }
      if (tried == best || !still_bad(tried)) continue;
      best = std::move(tried);
      smaller = true;
    }
    if (!smaller && run == 1) break;
    if (!smaller) run /= 2;
  }
  // A whole operation is easier to understand than a torn one.
  for (std::size_t i = 0; i < best.size(); ++i) {
    const auto& variants = doubts[i].variants;
    if (!reached(i) || (variants[best[i]].whole && variants[best[i]].under == 0)) continue;
    for (std::size_t j = 0; j < variants.size(); ++j) {
      if (!variants[j].whole || variants[j].under != 0) continue;
      Choices tried = best;
      tried[i] = static_cast<uint16_t>(j);
      if (still_bad(tried)) best = std::move(tried);
      break;
    }
  }
  return best;
}

}  // namespace spindle::crash
