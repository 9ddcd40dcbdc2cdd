// Jobs over whole images (check -r leaks, check -r all, compact), recorded on an image as a power cut left
// it: with leaks in it, with holes where the guest discarded, and with content that the job may not lose.
#include <algorithm>
#include <array>

#include "crash/campaign.h"
#include "crash/run.h"

namespace spindle::crash {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"repair-leaks", "repair-all", "compact"};

// What the guest sees of the image, sector by sector. The image is as before afterwards.
Result<> read_guest(Reactor& reactor, const Subject& subject, History& history) {
  const auto mark = history.base.mark();
  auto file = std::make_shared<ImageNode>(reactor, history.base);
  auto node = run_now(reactor, subject.open(file));
  if (!node) return std::unexpected(std::move(node.error()));
  history.guest_size = (*node)->size();
  std::vector<std::byte> bytes(1 << 20);
  std::vector<std::pair<uint64_t, Sector>> found;
  for (uint64_t at = 0; at < history.guest_size; at += bytes.size()) {
    const uint64_t length = std::min<uint64_t>(bytes.size(), history.guest_size - at);
    const iovec part{bytes.data(), length};
    SPINDLE_TRY(run_now(reactor, (*node)->read(at, Buffers(std::span(&part, 1), length))));
    for (uint64_t within = 0; within + kSector <= length; within += kSector) {
      if (is_zero(bytes.data() + within)) continue;
      auto& [sector, content] = found.emplace_back();
      sector = (at + within) / kSector;
      std::copy_n(bytes.data() + within, kSector, content.begin());
    }
  }
  SPINDLE_TRY(run_now(reactor, (*node)->close()));
  node->reset();
  history.base.undo(mark);
  for (const auto& [sector, content] : found)
    history.guest_start.emplace_back(sector, history.contents->intern(content.data()));
  return {};
}

// The state with everything of `from` that was there at its point, as a file of its own.
void copy_image(const SectorImage& from, History& to) {
  const uint64_t sectors = (from.size() + kSector - 1) / kSector;
  for (uint64_t sector = from.next_data(0, sectors); sector < sectors;
       sector = from.next_data(sector + 1, sectors)) {
    to.base.set(sector, to.contents->intern(from.contents().bytes(from.at(sector))));
  }
  to.base.resize(from.size());
  to.base.forget_past();
}

}  // namespace

std::span<const std::string_view> maintenance_names() {
  return kNames;
}

Result<History> record_maintenance(Reactor& reactor, const Subject& subject, std::string_view job,
                                   const WorkloadOptions& options) {
  const bool compacts = job == "compact";
  if (std::ranges::find(kNames, job) == kNames.end())
    return std::unexpected(Error::invalid("crash workload", std::string(job), "there is no such workload"));
  if (compacts ? !subject.compact : !subject.check) {
    return std::unexpected(Error{.kind = ErrorKind::NotSupported,
                                 .operation = "crash workload",
                                 .node = std::string(job),
                                 .detail = subject.name + " has no such job"});
  }
  auto before = record_program(reactor, subject, "discard", options);
  if (!before) return std::unexpected(std::move(before.error()));
  // One of the crash points, with all that was submitted but every third operation.
  Laboratory laboratory(reactor, *before, subject, {}, Depth::Metadata);
  const auto points = before->crash_points();
  const std::size_t chosen = points.size() - 1 - mix(options.seed) % ((points.size() + 1) / 2);
  laboratory.move_to(points[chosen]);
  const auto& doubts = laboratory.cursor().doubts();
  Choices choices(doubts.size());
  const auto choose = [&](uint64_t every) {
    for (std::size_t i = 0; i < doubts.size(); ++i) {
      const auto& variants = doubts[i].variants;
      const bool there = i % every != options.seed % every;
      choices[i] = static_cast<uint16_t>(there && !variants[0].whole && variants.size() > 1 ? 1 : 0);
    }
  };
  // A subject whose order is wrong has states that cannot be opened, or are no work for compact.
  choose(3);
  Verdict left = laboratory.judge(choices, false);
  if (left.has(Corruption::WillNotOpen) || (compacts && left.corrupt())) {
    std::ranges::fill(choices, 0);
    left = laboratory.judge(choices, false);
  }
  const auto too_damaged = [&] {
    return std::unexpected(
        BoxedError(Error{.kind = ErrorKind::Corrupt,
                         .operation = "crash workload",
                         .node = std::string(job),
                         .detail = "what the power cut left is too damaged; take another seed"}));
  };
  if (left.has(Corruption::WillNotOpen) || (compacts && left.corrupt())) return too_damaged();
  laboratory.cursor().apply_all(choices);

  History history;
  history.wrong_before = left.kinds;
  copy_image(laboratory.image(), history);
  // A job sees the image as it lies, without what opening it would mend.
  if (subject.check) {
    auto lies =
        run_now(reactor, subject.check(std::make_shared<ImageNode>(reactor, history.base), Repair::None));
    if (!lies) return too_damaged();
    if (lies->corruptions != 0 && compacts) return too_damaged();
    if (lies->corruptions != 0) history.wrong_before |= 1u << static_cast<unsigned>(Corruption::CheckError);
  }
  history.has_guest = true;
  SPINDLE_TRY(read_guest(reactor, subject, history));
  auto medium_options = options.medium;
  medium_options.seed = mix(options.seed) ^ medium_options.seed;
  auto medium = std::make_shared<RecordingMedium>(reactor, history, medium_options);
  const Repair repair = job == "repair-all" ? Repair::All : Repair::Leaks;
  auto report = run_over(*medium, compacts ? subject.compact(medium) : subject.check(medium, repair));
  if (!report) return std::unexpected(std::move(report.error()));
  history.finish();
  return history;
}

}  // namespace spindle::crash
