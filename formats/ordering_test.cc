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
}

}  // namespace
}  // namespace spindle
