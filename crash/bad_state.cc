#include "crash/bad_state.h"

#include <fmt/format.h>

#include <algorithm>

namespace spindle::crash {
namespace {

constexpr std::size_t kLastSettled = 12;

// Takes contents from another store over into one of its own.
class Mover {
 public:
  Mover(const ContentStore& from, ContentStore& to) : from_(from), to_(to) {}
  ContentId operator()(ContentId id) {
    const auto [place, fresh] = known_.try_emplace(id, kZeroContent);
    if (fresh) place->second = to_.intern(from_.bytes(id));
    return place->second;
  }

 private:
  const ContentStore& from_;
  ContentStore& to_;
  std::map<ContentId, ContentId> known_;
};

}  // namespace

BadState make_bad_state(Laboratory& laboratory, const Choices& choices, const Finding& finding) {
  const History& history = laboratory.history();
  const SectorImage& image = laboratory.image();
  BadState state;
  state.kind = finding.kind;
  state.finding = finding.text;
  Mover move(image.contents(), *state.contents);
  const uint64_t sectors = (image.size() + kSector - 1) / kSector;
  for (uint64_t sector = image.next_data(0, sectors); sector < sectors;
       sector = image.next_data(sector + 1, sectors)) {
    state.settled.set(sector, move(image.at(sector)));
  }
  state.settled.resize(image.size());
  state.settled.forget_past();

  const auto& doubts = laboratory.cursor().doubts();
  std::vector<bool> in_doubt(history.operations.size());
  for (std::size_t i = 0; i < doubts.size(); ++i) {
    in_doubt[doubts[i].operation] = true;
    Operation operation = history.operations[doubts[i].operation];
    auto parts = laboratory.cursor().parts_of(i, choices);
    std::erase_if(operation.pieces, [&](const Operation::Piece& piece) {
      const ByteSpan span{piece.sector * kSector + piece.from, piece.sector * kSector + piece.to};
      return std::ranges::none_of(parts, [&](const ByteSpan& part) { return part.overlaps(span); });
    });
    for (auto& piece : operation.pieces) piece.content = move(piece.content);
    state.doubts.push_back({std::move(operation), std::move(parts)});
  }
  for (std::size_t i = laboratory.cursor().submitted();
       i-- > 0 && state.settled_last.size() < kLastSettled;) {
    if (!in_doubt[i] && history.operations[i].changes())
      state.settled_last.insert(state.settled_last.begin(), describe(history.operations[i]));
  }
  if (history.has_guest) {
    const GuestModel& model = laboratory.model();
    GuestModel::Expectation expected;
    for (const uint64_t sector : model.touched()) {
      std::vector<ContentId> legal;
      for (const ContentId id : model.legal(sector)) legal.push_back(move(id));
      expected.sectors.emplace_back(sector, std::move(legal));
    }
    expected.sizes.assign(model.legal_sizes().begin(), model.legal_sizes().end());
    state.expected = std::move(expected);
  }
  return state;
}

BadState minimised_state(Reactor& reactor, const History& history, const Subject& subject,
                         const StateKey& key, Corruption kind, Tearing tearing, Depth depth) {
  Laboratory laboratory(reactor, history, subject, tearing, depth);
  laboratory.move_to(key.point);
  const Choices small = minimise(laboratory, key.choices, kind);
  const Verdict verdict = laboratory.judge(small, true);
  const auto found = std::ranges::find(verdict.findings, kind, &Finding::kind);
  BadState state =
      make_bad_state(laboratory, small, found == verdict.findings.end() ? Finding{.kind = kind} : *found);
  state.point = key.point;
  state.depth = depth;
  return state;
}

Verdict judge(Reactor& reactor, BadState& state, const Subject& subject) {
  ContentStore contents(state.contents.get());
  SectorImage image(state.settled, contents);
  for (const auto& [operation, parts] : state.doubts) {
    for (const ByteSpan& part : parts) apply(operation, part, image);
  }
  Judge judge(reactor, image, subject, state.depth);
  if (!state.expected) return judge.judge(nullptr, true);
  const GuestModel model(*state.contents, *state.expected);
  return judge.judge(&model, true);
}

std::string explain(const BadState& state) {
  std::string text = fmt::format(
      "{}{}, cache={}, workload {} with seed {}: a power cut just before event {}\n", state.format,
      [&] {
        std::string options;
        for (const auto& [key, value] : state.options) options += fmt::format(" {}={}", key, value);
        return options;
      }(),
      state.cache, state.workload, state.seed, state.point);
  text += fmt::format("The medium held for sure a file of {} bytes; the last that settled:\n",
                      state.settled.size());
  for (const std::string& line : state.settled_last) text += "  " + line + "\n";
  if (state.settled_last.empty()) text += "  nothing since the image was opened\n";
  text += "In doubt was the following, in the order of completion:\n";
  std::size_t missing = 0;
  const auto tell_missing = [&] {
    if (missing != 0) text += fmt::format("  {:>7}  {} more operations\n", "missing", missing);
    missing = 0;
  };
  for (const auto& [operation, parts] : state.doubts) {
    if (parts.empty()) {
      // The first few that are missing say what kind they are; a hundred would hide those that are not.
      if (state.doubts.size() > 40) {
        ++missing;
        continue;
      }
      text += fmt::format("  {:>7}  {}\n", "missing", describe(operation));
      continue;
    }
    tell_missing();
    const ByteSpan span = operation.span();
    const bool whole = parts.size() == 1 && parts[0].from == span.from && parts[0].to == span.to;
    text += fmt::format("  {:>7}  {}", whole ? "there" : "torn", describe(operation));
    if (!whole) {
      text += ", of it";
      for (const ByteSpan& part : parts) text += fmt::format(" [{}, {})", part.from, part.to);
    }
    text += "\n";
  }
  tell_missing();
  return text;
}

}  // namespace spindle::crash
