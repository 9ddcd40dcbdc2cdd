#include "crash/sample.h"

#include <algorithm>
#include <random>

namespace spindle::crash {

Result<> for_sample(Laboratory& laboratory, uint64_t seed, uint64_t states,
                    const std::function<Result<>(Position point)>& look) {
  std::mt19937_64 random(mix(seed) ^ 0x71656d75);
  const auto points = laboratory.history().crash_points();
  std::vector<std::size_t> chosen(states);
  for (std::size_t& point : chosen) point = random() % points.size();
  std::ranges::sort(chosen);
  for (const std::size_t point : chosen) {
    laboratory.move_to(points[point]);
    const auto& doubts = laboratory.cursor().doubts();
    Choices choices(doubts.size());
    for (std::size_t i = 0; i < choices.size(); ++i)
      choices[i] = static_cast<uint16_t>(random() % doubts[i].variants.size());
    const auto mark = laboratory.image().mark();
    laboratory.cursor().apply_all(choices);
    auto looked = look(points[point]);
    laboratory.image().undo(mark);
    if (!looked) return looked;
  }
  return {};
}

}  // namespace spindle::crash
