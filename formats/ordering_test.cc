// Every ordering edge that the commit and VDI declare, left out one at a time: each must show in some crash
// state, and none may in the right order. Prints the list and how many were caught.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>

#include "block/filters/fault_node.h"
#include "block/little_endian.h"
#include "crash/image_node.h"
#include "crash/run.h"
#include "crash/workload.h"
#include "formats/commit/commit.h"
#include "formats/test_support/cow_toy.h"
#include "formats/test_support/hunt.h"
#include "formats/vdi/check.h"
#include "formats/vdi/create.h"
#include "formats/vdi/register.h"
#include "formats/vdi/vdi_node.h"

namespace spindle {
namespace {

using crash::Subject;
using test::caught;
using test::CowToy;
using test::Hunt;
using vdi::Mutation;

class Tally {
 public:
  void note(std::string_view edge, const std::optional<std::string>& how) {
    ++all_;
    caught_ += how.has_value();
    fmt::print("  {:<40} {}\n", edge, how ? *how : "NOT CAUGHT");
    CHECK_MESSAGE(how.has_value(), edge);
  }
  ~Tally() {
    fmt::print("  {} of {} caught: {} %\n", caught_, all_, all_ == 0 ? 0 : 100 * caught_ / all_);
    std::fflush(stdout);
  }

 private:
  int all_ = 0, caught_ = 0;
};

Subject cow_toy(CommitMutation mutation, std::vector<FaultRule> faults = {}) {
  Subject subject;
  subject.name = "cow toy";
  subject.create = [](std::shared_ptr<Node> file, uint64_t size) {
    return CowToy::create(std::move(file), size);
  };
  subject.open = [mutation, faults](std::shared_ptr<Node> file) {
    if (!faults.empty()) file = std::make_shared<FaultNode>(std::move(file), faults);
    return CowToy::open(std::move(file),
                        {.max_waiting = 6 * CowToy::kSector, .idle = {}, .mutation = mutation});
  };
  subject.check = [](std::shared_ptr<Node> file, Repair) { return CowToy::check(std::move(file)); };
  return subject;
}

const std::vector<std::string> kToyWorkloads = {"overwrite", "random", "batch", "allocate", "toggle"};

TEST_CASE("ordering: the toy on the commit loses nothing in the right order") {
  auto reactor = std::move(*Reactor::create(64));
  const auto how = caught(*reactor, cow_toy(CommitMutation::None), {.workloads = kToyWorkloads, .seeds = 3});
  CHECK_MESSAGE(!how.has_value(), *how);
}

// Writes one block of a toy whose medium fails once, flushes until that succeeds, and looks at what is then
// durable. In words what is wrong; nullopt if nothing is.
std::optional<std::string> after_failure(Reactor& reactor, CommitMutation mutation, FaultRule rule) {
  crash::ContentStore contents;
  crash::SectorImage image(contents);
  auto file = std::make_shared<crash::ImageNode>(reactor, image);
  REQUIRE(crash::run_now(reactor, CowToy::create(file, 64 * CowToy::kSector)).has_value());
  auto faulty = std::make_shared<FaultNode>(file, std::vector{rule});
  auto toy = crash::run_now(reactor, CowToy::open(faulty, {.idle = {}, .mutation = mutation}));
  REQUIRE(toy.has_value());
  std::string text(CowToy::kSector, 'x');
  const iovec part{text.data(), text.size()};
  REQUIRE(crash::run_now(reactor, (*toy)->write(0, Buffers(std::span(&part, 1)), {})).has_value());
  const auto first = crash::run_now(reactor, (*toy)->flush());
  REQUIRE(!first.has_value());
  const auto second = crash::run_now(reactor, (*toy)->flush());
  std::optional<std::string> wrong;
  if (first.error()->number == EIO) {
    if (second) wrong = "a flush succeeds after one that failed";
  } else if (second) {
    auto again = crash::run_now(reactor, CowToy::open(file, {.idle = {}}));
    REQUIRE(again.has_value());
    std::string read(CowToy::kSector, '?');
    const iovec there{read.data(), read.size()};
    REQUIRE(crash::run_now(reactor, (*again)->read(0, Buffers(std::span(&there, 1)))).has_value());
    if (read != text) wrong = "a flush succeeds, and what it covers is not in the file";
  } else {
    wrong = "a flush fails for good because space was short once";
  }
  static_cast<void>(crash::run_now(reactor, (*toy)->close()));
  return wrong;
}

constexpr FaultRule kNoSpaceForPointers{.kind = FaultKind::Write, .from = 3, .number = ENOSPC};
constexpr FaultRule kFailedFlush{.kind = FaultKind::Flush, .from = 1, .number = EIO};

TEST_CASE("ordering: every edge of the commit is needed") {
  auto reactor = std::move(*Reactor::create(64));
  Tally tally;
  fmt::print("edges of the commit, left out over the cow toy:\n");
  const std::pair<CommitMutation, std::string_view> edges[] = {
      {CommitMutation::NoBarrierBeforePointers, "no barrier before pointers"},
      {CommitMutation::PointersFirst, "pointers before what they point at"},
      {CommitMutation::NoFinalBarrier, "no barrier behind pointers"},
      {CommitMutation::ReleaseEarly, "space released before that barrier"},
      {CommitMutation::FreezeTwice, "pointers frozen after the barrier"},
      {CommitMutation::JoinRunning, "a flush joins a running commit"},
  };
  for (const auto& [mutation, name] : edges)
    tally.note(name, caught(*reactor, cow_toy(mutation), {.workloads = kToyWorkloads}));
  for (const auto& rule : {kNoSpaceForPointers, kFailedFlush})
    CHECK(!after_failure(*reactor, CommitMutation::None, rule).has_value());
  tally.note("what could not be written is forgotten",
             after_failure(*reactor, CommitMutation::ForgetAfterError, kNoSpaceForPointers));
  tally.note("a failed barrier is forgotten",
             after_failure(*reactor, CommitMutation::GoOnAfterFailure, kFailedFlush));
}

constexpr uint64_t kBlock = 512;
constexpr uint64_t kBlocks = 64;

Subject vdi_subject(vdi::Mutations mutations) {
  auto subject = crash::subject_of(vdi::format(mutations), {{"block_size", "512"}, {"prealloc-ahead", "4k"}});
  REQUIRE_MESSAGE(subject.has_value(), (subject ? "" : subject.error()->message()));
  return *subject;
}

Task<Result<>> write_text(Node& file, uint64_t offset, std::string text) {
  const iovec part{text.data(), text.size()};
  co_return co_await file.write(offset, Buffers(std::span(&part, 1)), {});
}

std::string entries(uint32_t count, uint32_t first_place) {
  std::string text(4 * count, '\xff');
  for (uint32_t i = 0; first_place != vdi::kFree && i < count; ++i)
    put32(reinterpret_cast<std::byte*>(text.data()) + 4 * i, first_place + i);
  return text;
}

Task<Result<>> write_header(Node& file, vdi::Header& header) {
  vdi::encode_header(header);
  co_return co_await write_text(
      file, 0, std::string(reinterpret_cast<const char*>(header.bytes.data()), header.bytes.size()));
}

// A new image of `size` bytes whose file has `places` places, all full of junk; and its header.
Task<Result<vdi::Header>> create_with_places(Node& file, uint64_t size, uint32_t places) {
  CreateOptions options{.size = size};
  options.options.emplace("block_size", "512");
  auto made = co_await vdi::create(file, std::move(options));
  if (!made) co_return std::unexpected(std::move(made.error()));
  auto header = co_await vdi::read_header(file);
  if (!header) co_return header;
  made = co_await file.resize(header->place_offset(places));
  if (made) made = co_await write_text(file, header->data_offset, std::string(places * kBlock, '#'));
  header->allocated = places;
  if (made) made = co_await write_header(file, *header);
  if (!made) co_return std::unexpected(std::move(made.error()));
  co_return header;
}

// Of the places only the highest has an owner, which is all zeroes: the others are holes below it, as a run
// that was interrupted leaves them.
Task<Result<>> create_with_holes(std::shared_ptr<Node> file, uint64_t size) {
  const auto places = static_cast<uint32_t>(size / kBlock / 2);
  auto header = co_await create_with_places(*file, size, places);
  if (!header) co_return std::unexpected(std::move(header.error()));
  SPINDLE_CO_TRY(co_await write_text(*file, header->place_offset(places - 1), std::string(kBlock, '\0')));
  co_return co_await write_text(*file, header->map_offset, entries(1, places - 1));
}

Subject with_holes(vdi::Mutations mutations) {
  Subject subject = vdi_subject(mutations);
  subject.create = create_with_holes;
  return subject;
}

// The first half of the blocks is at the first places, and the copies that a move makes are at the next ones:
// all zeroes, and durable.
Task<Result<>> create_half_moved(std::shared_ptr<Node> file, uint64_t size) {
  const auto half = static_cast<uint32_t>(size / kBlock / 2);
  auto header = co_await create_with_places(*file, size, 2 * half);
  if (!header) co_return std::unexpected(std::move(header.error()));
  SPINDLE_CO_TRY(co_await write_text(*file, header->data_offset, std::string(size, '\0')));
  co_return co_await write_text(*file, header->map_offset, entries(half, 0));
}

// Whoever had that image open pointed these blocks to their copies, and was killed before the barrier behind
// that. Then a guest starts.
Task<Result<std::shared_ptr<Node>>> open_half_moved(vdi::Mutations mutations, std::shared_ptr<Node> file) {
  if (dynamic_cast<crash::RecordingMedium*>(file.get())) {
    auto header = co_await vdi::read_header(*file);
    if (!header) co_return std::unexpected(std::move(header.error()));
    const uint32_t half = header->blocks / 2;
    auto moved = co_await write_text(*file, header->map_offset, entries(half, half));
    if (!moved) co_return std::unexpected(std::move(moved.error()));
  }
  auto node = co_await vdi_subject(mutations).open(std::move(file));
  co_return node;
}

Subject half_moved(vdi::Mutations mutations) {
  Subject subject = vdi_subject(mutations);
  subject.create = create_half_moved;
  subject.open = [mutations](std::shared_ptr<Node> file) {
    return open_half_moved(mutations, std::move(file));
  };
  return subject;
}

constexpr uint64_t kLargeBlock = 4096;

// Blocks that are larger than a sector, so that disks end within them, and a map that has room for 128 of
// them.
Task<Result<>> create_with_tight_map(std::shared_ptr<Node> file, uint64_t size) {
  CreateOptions options{.size = size};
  options.options.emplace("block_size", "4096");
  SPINDLE_CO_TRY(co_await vdi::create(*file, std::move(options)));
  auto header = co_await vdi::read_header(*file);
  if (!header) co_return std::unexpected(std::move(header.error()));
  header->map_offset = header->data_offset - 512;
  SPINDLE_CO_TRY(co_await write_text(*file, header->map_offset, entries(128, vdi::kFree)));
  co_return co_await write_header(*file, *header);
}

Subject with_tight_map(vdi::Mutations mutations) {
  Subject subject = vdi_subject(mutations);
  subject.create = create_with_tight_map;
  return subject;
}

// Blocks 0 to 7 and 8 to 15 share places 0 to 7.
Task<Result<vdi::Header>> create_with_doubles(Node& file) {
  auto header = co_await create_with_places(file, kBlocks * kBlock, 8);
  if (!header) co_return header;
  auto written = co_await write_text(file, header->map_offset, entries(8, 0) + entries(8, 0));
  if (!written) co_return std::unexpected(std::move(written.error()));
  co_return header;
}

Task<Result<std::shared_ptr<Node>>> repair_and_open(std::shared_ptr<Node> file) {
  auto repaired = co_await vdi::check(*file, Repair::All, Mutation::None);
  if (!repaired) co_return std::unexpected(std::move(repaired.error()));
  auto node = co_await vdi_subject({}).open(std::move(file));
  co_return node;
}

// Before its repair has ended, doubles and leaks are what is wrong with such an image, and nothing else.
Task<Result<CheckReport>> check_but_for_doubles(std::shared_ptr<Node> file) {
  auto found = co_await vdi::check(*file, Repair::None, Mutation::None);
  if (!found) co_return found;
  std::erase_if(found->messages, [](const std::string& line) {
    return line.find(" has too") != line.npos || line.find("used by no block") != line.npos;
  });
  found->corruptions = found->messages.size();
  found->leaks = 0;
  co_return found;
}

// check -r all of that image, recorded; the judge repairs what it left, opens it, and reads. In words what is
// wrong.
std::optional<std::string> repair_of_doubles(Reactor& reactor, Mutation mutation) {
  crash::History history;
  const auto header = crash::run_now(
      reactor, create_with_doubles(*std::make_shared<crash::ImageNode>(reactor, history.base)));
  REQUIRE(header.has_value());
  for (uint64_t block = 0; block < 8; ++block) {
    crash::Sector sector{};
    crash::fill_pattern(sector.data(), block, 1);
    history.base.write(header->place_offset(static_cast<uint32_t>(block)), sector.data(), sector.size());
    for (const uint64_t guest : {block, block + 8})
      history.guest_start.emplace_back(guest, history.contents->intern(sector.data()));
  }
  history.base.forget_past();
  history.has_guest = true;
  history.guest_size = kBlocks * kBlock;
  crash::RecordingMedium medium(reactor, history, {});
  const auto report = crash::run_over(medium, vdi::check(medium, Repair::All, mutation));
  REQUIRE_MESSAGE(report.has_value(), (report ? "" : report.error()->message()));
  CHECK(report->corruptions_fixed == 8);
  history.finish();

  Subject subject = vdi_subject({});
  subject.open = repair_and_open;
  subject.check = [](std::shared_ptr<Node> file, Repair) { return check_but_for_doubles(std::move(file)); };
  const auto found = crash::explore(history, subject, {.states = 20'000});
  REQUIRE(found.has_value());
  // Only the repair under test may mend more than doubles: what the judge's own finds beside them is damage
  // too.
  if (found->corrupt + found->recovered == 0) return std::nullopt;
  return fmt::format("repair-all of doubles: {} states lose content, {} have other damage", found->corrupt,
                     found->recovered);
}

const Hunt kResizes{.workloads = {"resize", "mixed"}, .disk_bytes = 126 * kLargeBlock, .block = kLargeBlock};
const std::vector<std::string> kGuestWorkloads = {"allocate", "random", "batch", "discard"};

TEST_CASE("ordering: VDI loses nothing in the right order, whatever it finds when it opens") {
  auto reactor = std::move(*Reactor::create(64));
  for (const auto& subject : {vdi_subject({}), with_holes({}), half_moved({})}) {
    const auto how = caught(*reactor, subject, {.workloads = kGuestWorkloads, .seeds = 2});
    CHECK_MESSAGE(!how.has_value(), *how);
  }
  const auto how =
      caught(*reactor, vdi_subject({}), {.workloads = {"resize", "repair-leaks", "compact"}, .seeds = 2});
  CHECK_MESSAGE(!how.has_value(), *how);
  const auto doubles = repair_of_doubles(*reactor, Mutation::None);
  CHECK_MESSAGE(!doubles.has_value(), *doubles);
}

TEST_CASE("ordering: every edge of VDI is needed") {
  auto reactor = std::move(*Reactor::create(64));
  Tally tally;
  fmt::print("edges of VDI, left out:\n");
  struct Edge {
    vdi::Mutations mutations;
    std::string_view name;
    Subject (*subject)(vdi::Mutations);
    std::vector<std::string> workloads;  // none: kResizes
  };
  const std::vector<std::string> jobs = {"repair-leaks", "compact"};
  const Edge edges[] = {
      {{.commit = CommitMutation::NoBarrierBeforePointers},
       "no barrier before entries",
       vdi_subject,
       kGuestWorkloads},
      {{.commit = CommitMutation::PointersFirst}, "entries before the count", vdi_subject, kGuestWorkloads},
      {{.commit = CommitMutation::NoFinalBarrier}, "no barrier behind entries", vdi_subject, kGuestWorkloads},
      {{.vdi = Mutation::CountNotRaised}, "the count is not raised", vdi_subject, kGuestWorkloads},
      {{.vdi = Mutation::CountWithPointers},
       "the count is written with the entries",
       vdi_subject,
       kGuestWorkloads},
      {{.vdi = Mutation::AllPlacesReady}, "new space needs no barrier", vdi_subject, kGuestWorkloads},
      {{.vdi = Mutation::HolesNotZeroed}, "space used again keeps what it held", with_holes, kGuestWorkloads},
      {{.vdi = Mutation::ReuseBeforeBarrier},
       "space used again before a barrier",
       half_moved,
       kGuestWorkloads},
      {{.vdi = Mutation::CloseCountTooLow}, "closing lowers the count too far", vdi_subject, kGuestWorkloads},
      {{.vdi = Mutation::CloseCutsTooMuch}, "closing cuts the last block off", vdi_subject, kGuestWorkloads},
      {{.vdi = Mutation::MoveWithoutBarrier}, "a moved block's entry before its copy", vdi_subject, jobs},
      {{.vdi = Mutation::CutBeforePointers}, "the file is cut before moved entries", vdi_subject, jobs},
      {{.vdi = Mutation::CountBeforePointers}, "the count falls before moved entries", vdi_subject, jobs},
      {{.vdi = Mutation::SwitchBeforeMap}, "the header before a moved map", with_tight_map, {}},
      {{.vdi = Mutation::TailNotZeroed}, "what lies behind the end is not zeroed", with_tight_map, {}},
      {{.vdi = Mutation::EntriesBeforeSize}, "entries are dropped before the size", with_tight_map, {}},
      {{.vdi = Mutation::BlocksBeforeMap}, "more blocks before their entries", with_tight_map, {}},
  };
  for (const Edge& edge : edges)
    tally.note(edge.name, caught(*reactor, edge.subject(edge.mutations),
                                 edge.workloads.empty() ? kResizes : Hunt{.workloads = edge.workloads}));
  tally.note("a double's copy is not counted", repair_of_doubles(*reactor, Mutation::SplitWithoutCount));
  tally.note("a double's entry before its copy", repair_of_doubles(*reactor, Mutation::MoveWithoutBarrier));
}

}  // namespace
}  // namespace spindle
