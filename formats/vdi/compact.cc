#include "formats/vdi/compact.h"

#include <algorithm>
#include <utility>

#include "formats/vdi/check.h"

namespace spindle::vdi {
namespace {

struct Moves {
  std::vector<std::pair<uint32_t, uint32_t>> moves;  // from, to; by from
  uint64_t places = 0;                               // that are left in use
};

// The highest places to the lowest holes, until there is none below the end.
Moves plan(const std::vector<uint32_t>& used) {
  Moves plan{.moves = {}, .places = used.size()};
  const auto staying = std::ranges::lower_bound(used, plan.places);
  auto stays = used.begin();
  uint32_t hole = 0;
  for (auto moving = staying; moving != used.end(); ++moving, ++hole) {
    for (; stays != staying && *stays == hole; ++stays) ++hole;
    plan.moves.emplace_back(*moving, hole);
  }
  return plan;
}

}  // namespace

Task<Result<>> fill_holes(Image& image, CheckReport& report, Mutation mutation) {
  const auto used = image.map.used();
  const uint64_t had = std::max<uint64_t>(image.header.allocated, image.places_begun());
  const Moves planned = plan(used.places);
  if (had == planned.places && planned.moves.empty()) co_return Result<>{};

  auto made = co_await image.make_places(planned.places);
  if (!made) co_return made;
  for (const auto& [from, to] : planned.moves) {
    auto copied = co_await image.copy_place(from, to);
    if (!copied) co_return copied;
  }
  Result<> step;
  if (!planned.moves.empty()) {
    if (mutation != Mutation::MoveWithoutBarrier) step = co_await image.barrier();
    if (!step) co_return step;
    for (uint32_t block = 0; block < image.map.blocks(); ++block) {
      const auto moved =
          std::ranges::lower_bound(planned.moves, image.map[block], {}, [](auto& m) { return m.first; });
      if (moved != planned.moves.end() && moved->first == image.map[block])
        image.map.set(block, moved->second);
    }
    if (mutation == Mutation::CountBeforePointers) {
      image.header.allocated = static_cast<uint32_t>(planned.places);
      step = co_await image.write_header();
      if (!step) co_return step;
    }
    step = co_await image.write_entries();
    if (step && mutation != Mutation::CutBeforePointers) step = co_await image.barrier();
    if (!step) co_return step;
  }
  image.header.allocated = static_cast<uint32_t>(planned.places);
  step = co_await image.write_header();
  if (step) step = co_await image.cut_places(planned.places);
  if (step) step = co_await image.barrier();
  if (!step) co_return step;
  report.leaks_fixed += had - planned.places;
  co_return Result<>{};
}

Task<Result<CheckReport>> compact(Node& file, Mutation mutation) {
  auto checked = co_await check(file, Repair::None, mutation);
  if (!checked) co_return checked;
  if (checked->corruptions != 0) {
    co_return std::unexpected(Error{.kind = ErrorKind::Corrupt,
                                    .operation = "compact",
                                    .node = file.facts().name,
                                    .detail = "it must be repaired first: `spindle img check -r all`"});
  }
  auto image = co_await Image::load(file);
  if (!image) co_return std::unexpected(std::move(image.error()));
  CheckReport report;
  for (uint32_t block = 0; block < image->map.blocks(); ++block) {
    if (!is_place(image->map[block])) continue;
    auto zero = co_await image->place_is_zero(image->map[block]);
    if (!zero) co_return std::unexpected(std::move(zero.error()));
    if (*zero) image->map.set(block, kZero);
  }
  auto step = Result<>{};
  if (image->map.changed()) {
    // What becomes unused may be overwritten only when nothing durable points to it.
    step = co_await image->write_entries();
    if (step && mutation != Mutation::CutBeforePointers) step = co_await image->barrier();
  }
  if (step) step = co_await fill_holes(*image, report, mutation);
  if (!step) co_return std::unexpected(std::move(step.error()));
  auto after = co_await check(file, Repair::None, mutation);
  if (!after) co_return after;
  after->leaks_fixed = report.leaks_fixed;
  co_return after;
}

}  // namespace spindle::vdi
