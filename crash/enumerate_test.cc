// The enumerator against brute force that was written without it: random small histories, every subset, every
// way to tear, every order that is allowed, byte by byte. Both must find the same states at each crash point.
#include "crash/enumerate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace spindle::crash {
namespace {

constexpr uint64_t kSectors = 6;

// A state as brute force sees it: for each sector who wrote it last (0: the base, -1: zeroes), and the size.
struct Plain {
  std::vector<int> sectors;
  uint64_t size = 0;
  auto operator<=>(const Plain&) const = default;
};

struct TestOperation {
  Operation::Kind kind;
  uint64_t first = 0, count = 0;  // sectors; of a resize the sizes before and after
  bool fua = false;
  Position submitted = 0, completed = kNever;
};

struct TestHistory {
  std::vector<TestOperation> operations;
  Position end = 1;
};

// At most `in_flight` at once; resizes alone.
TestHistory random_history(std::mt19937_64& random, std::size_t count, std::size_t in_flight) {
  TestHistory history;
  std::vector<std::size_t> flying;
  uint64_t size = kSectors;
  const auto complete = [&](std::size_t which) {
    history.operations[flying[which]].completed = history.end++;
    flying.erase(flying.begin() + static_cast<std::ptrdiff_t>(which));
  };
  while (history.operations.size() < count) {
    if (!flying.empty() && (random() % 2 == 0 || flying.size() == in_flight)) {
      complete(random() % flying.size());
      continue;
    }
    TestOperation operation{.kind = Operation::Kind::Write};
    const auto what = random() % 10;
    if (what == 0) {
      while (!flying.empty()) complete(random() % flying.size());
      operation = {.kind = Operation::Kind::Resize, .first = size, .count = 2 + random() % (kSectors + 2)};
      size = operation.count;
    } else if (what <= 2) {
      operation.kind = Operation::Kind::Flush;
    } else {
      if (what == 3) operation.kind = Operation::Kind::Zero;
      operation.first = random() % size;
      operation.count = 1 + random() % std::min<uint64_t>(2, size - operation.first);
      operation.fua = random() % 5 == 0;
    }
    operation.submitted = history.end++;
    history.operations.push_back(operation);
    flying.push_back(history.operations.size() - 1);
    if (operation.kind == Operation::Kind::Resize) complete(flying.size() - 1);
  }
  while (!flying.empty() && random() % 4 != 0) complete(random() % flying.size());
  return history;
}

class BruteForce {
 public:
  explicit BruteForce(const TestHistory& history) : history_(history) {}

  std::set<Plain> states(Position point) {
    found_.clear();
    chosen_.clear();
    choose(0, point);
    return found_;
  }

 private:
  struct Chosen {
    std::size_t operation;
    uint64_t mask;  // sectors of it
    bool durable;
  };

  bool durable(const TestOperation& operation, Position point) const {
    if (operation.completed >= point) return false;
    if (operation.fua) return true;
    return std::ranges::any_of(history_.operations, [&](const TestOperation& flush) {
      return flush.kind == Operation::Kind::Flush && flush.submitted > operation.completed &&
             flush.completed < point;
    });
  }

  void choose(std::size_t index, Position point) {
    if (index == history_.operations.size() || history_.operations[index].submitted >= point) {
      std::vector<std::size_t> order;
      std::vector<bool> used(chosen_.size());
      arrange(order, used);
      return;
    }
    const TestOperation& operation = history_.operations[index];
    if (operation.kind == Operation::Kind::Flush) return choose(index + 1, point);
    const bool is_durable = durable(operation, point);
    const uint64_t all = operation.kind == Operation::Kind::Resize ? 1 : (1u << operation.count) - 1;
    for (uint64_t mask = is_durable ? all : 0; mask <= all; ++mask) {
      if (mask != 0) chosen_.push_back({index, mask, is_durable});
      choose(index + 1, point);
      if (mask != 0) chosen_.pop_back();
    }
  }

  // Whether `a` must come before `b`.
  bool before(const Chosen& a, const Chosen& b) const {
    const auto& x = history_.operations[a.operation];
    const auto& y = history_.operations[b.operation];
    if (x.completed < y.submitted) return true;
    return a.durable && b.durable && x.completed < y.completed;
  }

  void arrange(std::vector<std::size_t>& order, std::vector<bool>& used) {
    if (order.size() == chosen_.size()) return carry_out(order);
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      if (used[i]) continue;
      bool first = true;
      for (std::size_t j = 0; j < chosen_.size(); ++j) {
        if (j != i && !used[j] && before(chosen_[j], chosen_[i])) first = false;
      }
      if (!first) continue;
      used[i] = true;
      order.push_back(i);
      arrange(order, used);
      order.pop_back();
      used[i] = false;
    }
  }

  void carry_out(const std::vector<std::size_t>& order) {
    Plain state{std::vector<int>(2 * kSectors + 4, -1), kSectors};
    for (uint64_t i = 0; i < kSectors; ++i) state.sectors[i] = 0;
    for (const std::size_t i : order) {
      const TestOperation& operation = history_.operations[chosen_[i].operation];
      if (operation.kind == Operation::Kind::Resize) {
        for (uint64_t s = operation.count; s < state.sectors.size(); ++s) state.sectors[s] = -1;
        state.size = operation.count;
        continue;
      }
      for (uint64_t s = 0; s < operation.count; ++s) {
        if ((chosen_[i].mask >> s & 1) == 0) continue;
        const bool writes = operation.kind == Operation::Kind::Write;
        state.sectors[operation.first + s] = writes ? static_cast<int>(chosen_[i].operation) + 1 : -1;
        state.size = std::max(state.size, operation.first + s + 1);
      }
    }
    found_.insert(state);
  }

  const TestHistory& history_;
  std::vector<Chosen> chosen_;
  std::set<Plain> found_;
};

History real_history(const TestHistory& test) {
  History history;
  const auto content = [&](uint64_t sector, uint32_t write) {
    Sector bytes;
    fill_pattern(bytes.data(), sector, write);
    return history.contents->intern(bytes.data());
  };
  history.base.resize(kSectors * kSector);
  for (uint64_t i = 0; i < kSectors; ++i) history.base.set(i, content(i, 0));
  history.base.forget_past();
  for (std::size_t i = 0; i < test.operations.size(); ++i) {
    const TestOperation& from = test.operations[i];
    Operation operation{.kind = from.kind,
                        .fua = from.fua,
                        .offset = from.first * kSector,
                        .length = from.count * kSector,
                        .submitted = from.submitted,
                        .completed = from.completed,
                        .pieces = {}};
    for (uint64_t s = 0; from.kind == Operation::Kind::Write && s < from.count; ++s)
      operation.pieces.push_back(
          {from.first + s, content(from.first + s, static_cast<uint32_t>(i + 1)), 0, kSector});
    history.operations.push_back(std::move(operation));
  }
  history.end = test.end;
  history.finish();
  return history;
}

Plain plain(const SectorImage& image) {
  Plain state{std::vector<int>(2 * kSectors + 4, -1), image.size() / kSector};
  for (uint64_t i = 0; i < state.sectors.size(); ++i) {
    const Origin origin = origin_of(image.contents().bytes(image.at(i)));
    if (origin.kind == Origin::Kind::Pattern) state.sectors[i] = static_cast<int>(origin.write);
  }
  return state;
}

TEST_CASE("enumerate: finds exactly the states that brute force finds") {
  std::mt19937_64 random(1);
  uint64_t compared = 0, points = 0;
  for (int round = 0; round < 400; ++round) {
    const TestHistory test = random_history(random, 5 + random() % 3, 3);
    const History history = real_history(test);
    ContentStore contents(history.contents.get());
    SectorImage image(history.base, contents);
    EpochCursor cursor(history, image, {});
    BruteForce brute(test);
    for (const Position point : history.crash_points()) {
      cursor.move_to(point);
      std::set<Plain> found;
      const uint64_t hash = image.hash();
      const auto outcome = enumerate(cursor, history, image, 1'000'000, 1, [&](const Choices&) {
        found.insert(plain(image));
        return true;
      });
      CHECK(image.hash() == hash);
      CHECK(outcome.complete);
      CHECK(outcome.states == found.size());
      const auto expected = brute.states(point);
      CAPTURE(round);
      CAPTURE(point);
      REQUIRE(found == expected);
      compared += found.size();
      ++points;
    }
  }
  MESSAGE(compared << " states at " << points << " crash points");
  CHECK(compared > 10'000);
}

TEST_CASE(
    "enumerate: a sample keeps to its budget, is the same for a seed, and holds what its strata promise") {
  TestHistory test;
  for (uint64_t i = 0; i < 40; ++i) {
    test.operations.push_back(
        {.kind = Operation::Kind::Write, .first = i % kSectors, .count = 1, .submitted = test.end});
    test.operations.back().completed = test.end + 1;
    test.end += 2;
  }
  // Forty different places, so that each subset is a state of its own.
  for (uint64_t i = 0; i < 40; ++i) test.operations[i].first = i;
  History history;
  for (uint32_t i = 0; i < 40; ++i) {
    Sector bytes;
    fill_pattern(bytes.data(), i, i + 1);
    history.operations.push_back({.kind = Operation::Kind::Write,
                                  .offset = i * kSector,
                                  .length = kSector,
                                  .submitted = test.operations[i].submitted,
                                  .completed = test.operations[i].completed,
                                  .pieces = {{i, history.contents->intern(bytes.data()), 0, kSector}}});
  }
  history.end = test.end;
  history.finish();
  const auto sample = [&](uint64_t seed) {
    ContentStore contents(history.contents.get());
    SectorImage image(history.base, contents);
    EpochCursor cursor(history, image, {});
    cursor.move_to(history.end);
    std::set<std::vector<uint16_t>> found;
    const auto outcome = enumerate(cursor, history, image, 2000, seed, [&](const Choices& choices) {
      found.insert(choices);
      return true;
    });
    CHECK(outcome.states == 2000);
    CHECK(!outcome.complete);
    return found;
  };
  const auto found = sample(1);
  CHECK(found == sample(1));
  CHECK(found != sample(2));
  for (std::size_t i = 0; i < 40; ++i) {
    std::vector<uint16_t> alone(40, 0), missing(40, 1), prefix(40, 0);
    alone[i] = 1;
    missing[i] = 0;
    for (std::size_t j = 0; j < i; ++j) prefix[j] = 1;
    CHECK(found.contains(alone));
    CHECK(found.contains(missing));
    CHECK(found.contains(prefix));
  }
}

TEST_CASE("enumerate: with pages of 4096 bytes a write tears only where a page ends") {
  History history;
  Operation operation{
      .kind = Operation::Kind::Write, .offset = 7 * kSector, .length = 2 * kSector, .pieces = {}};
  for (uint64_t i = 7; i < 9; ++i) {
    Sector bytes;
    fill_pattern(bytes.data(), i, 1);
    operation.pieces.push_back({i, history.contents->intern(bytes.data()), 0, kSector});
  }
  operation.submitted = history.end++;
  history.operations.push_back(operation);
  operation.submitted = history.end++;
  operation.offset = 8 * kSector;  // within one page
  operation.length = kSector;
  operation.pieces.erase(operation.pieces.begin());
  history.operations.push_back(operation);
  history.finish();
  for (const auto& [unit, first, second] : {std::tuple{512u, 4u, 2u}, std::tuple{4096u, 4u, 2u}}) {
    ContentStore contents(history.contents.get());
    SectorImage image(history.base, contents);
    EpochCursor cursor(history, image, {.unit = unit});
    cursor.move_to(history.end);
    // Not at all, whole, and each of two pages: sector 7 ends one.
    CHECK(cursor.doubts()[0].variants.size() == first);
    // The second meets the first and was in flight with it: over or under.
    CHECK(cursor.doubts()[1].variants.size() == second + 1);
  }
}

}  // namespace
}  // namespace spindle::crash
