// The durability contract as a model: random interleavings of writes, FUA writes, flushes, failures and cache
// toggles over a medium whose every step the test controls, checked against what D1-D6 promise. The same
// check run with a wrong order put in on purpose must find it, or it would not be a check.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <list>
#include <random>
#include <set>
#include <string>

#include "block/disk.h"
#include "block/test_support/held_node.h"

namespace spindle {
namespace {

using test::HeldNode;
using test::settle;

struct Mutations {
  SequencerMutation sequencer = SequencerMutation::None;
  DiskMutation disk = DiskMutation::None;
};

// One random run. violation() is empty if every promise was kept.
class Run {
 public:
  Run(uint64_t seed, Mutations mutations, CacheMode cache, bool with_failures)
      : random_(seed), with_failures_(with_failures) {
    reactor_ = std::move(*Reactor::create(64));
    node_ = std::make_shared<HeldNode>(*reactor_);
    node_->sequencer().set_mutation(mutations.sequencer);
    disk_ = std::make_unique<Disk>(node_, DiskOptions{.id = "disk0", .cache = cache});
    disk_->set_mutation(mutations.disk);
    in_force_ = starts_with_write_cache(cache);
  }

  void steps(int count) {
    for (int i = 0; i < count && violation_.empty(); ++i) step();
    do {
      while (!node_->held().empty()) release_one(false);
      settle(*reactor_);
    } while (!node_->held().empty());
    check_counters();
  }
  const std::string& violation() const { return violation_; }

 private:
  struct Request {
    uint64_t id = 0;
    iovec part{};
    bool fua = false;
    bool write_through = false;  // promised at the node's completion
    bool after_failure = false;
    std::set<uint64_t> promised;  // what a flush or a toggle must have made durable when it succeeds
    uint64_t flush_number = 0;    // of a guest's flush, from 1
  };

  void step() {
    switch (std::uniform_int_distribution(0, 9)(random_)) {
      case 0:
      case 1:
      case 2:
        start_write();
        break;
      case 3:
      case 4:
        start_flush();
        break;
      case 5:
        start_toggle();
        break;
      default:
        release_one(with_failures_ && random_() % 60 == 0);
    }
    if (node_->flushes_running() > 1) violate("two flushes of one node run at once");
    if (random_() % 3 == 0) settle(*reactor_);
  }

  void start_write() {
    Request& request = new_request();
    request.id = ++last_id_;
    request.part = {&request.id, sizeof request.id};
    request.fua = random_() % 8 == 0;
    spawn(disk_->write(0, Buffers(std::span(&request.part, 1)), WriteFlags{.fua = request.fua}),
          [this, &request](Result<> result) { write_returned(request, result.has_value()); });
  }

  void write_returned(Request& request, bool success) {
    if (!success) return;
    if (request.after_failure) violate(fmt::format("write {} succeeded after a failed flush", request.id));
    if ((request.write_through || request.fua) && !node_->durable(request.id)) {
      violate(fmt::format("write {} returned before it was durable", request.id));
    }
    returned_.insert(request.id);
  }

  void start_flush() {
    Request& request = new_request();
    request.promised = returned_;
    request.flush_number = ++flushes_asked_;
    pending_flushes_.insert(request.flush_number);
    const bool needless =
        all_durable(returned_) && !node_->sequencer().dirty() && node_->flushes_running() == 0;
    const uint64_t before = node_->flushes_started();
    spawn(disk_->flush(),
          [this, &request](Result<> result) { flush_returned(request, result.has_value(), "flush"); });
    if (needless && node_->flushes_started() != before)
      violate("a flush was issued though the node was clean");
  }

  void flush_returned(Request& request, bool success, const char* what) {
    pending_flushes_.erase(request.flush_number);
    if (!success) return;
    if (request.flush_number != 0 && !pending_flushes_.empty() &&
        *pending_flushes_.begin() < request.flush_number) {
      violate(
          fmt::format("flush {} returned before flush {}", request.flush_number, *pending_flushes_.begin()));
    }
    if (request.after_failure) violate(fmt::format("a {} succeeded after a failed flush", what));
    if (!all_durable(request.promised))
      violate(fmt::format("a {} returned before what it covers was durable", what));
  }

  void start_toggle() {
    if (toggling_) return;
    toggling_ = true;
    const bool on = random_() % 2 == 0;
    const bool was_shown = disk_->write_cache();
    Request& request = new_request();
    if (!on) in_force_ = false;
    if (!on && was_shown) request.promised = returned_;
    spawn(disk_->set_write_cache(on), [this, &request, on](Result<> result) {
      toggling_ = false;
      if (on && !failed_) in_force_ = true;
      if (on) return;
      flush_returned(request, result.has_value() && !request.promised.empty(), "toggle");
      if (result && disk_->write_cache()) violate("the cache is shown on after it was turned off");
      if (!result && !disk_->write_cache()) violate("the cache is shown off though its flush failed");
    });
  }

  void release_one(bool fail) {
    auto& held = node_->held();
    if (held.empty()) return;
    HeldNode::Held* chosen = held[random_() % held.size()];
    if (fail && (chosen->kind == HeldNode::Held::Kind::Flush || chosen->fua)) failed_ = true;
    if (chosen->kind == HeldNode::Held::Kind::Write) {
      for (Request& request : requests_) {
        if (request.id == chosen->id) request.write_through = !in_force_;
      }
    }
    node_->release(chosen, fail);
  }

  void check_counters() {
    if (!violation_.empty()) return;
    const DiskCounters& c = disk_->counters();
    const uint64_t reasons = c.flush_requests.value() + c.flushes_writethrough.value() +
                             c.flushes_toggle.value() + c.flushes_background.value();
    const uint64_t outcomes = c.flushes_issued.value() + c.flushes_elided.value() +
                              c.flushes_coalesced.value() + c.flushes_failed.value();
    if (reasons != outcomes) violate(fmt::format("{} reasons to flush, {} outcomes", reasons, outcomes));
    if (!failed_ && c.flushes_issued.value() != node_->flushes_started())
      violate("flushes_issued is not exact");
  }

  bool all_durable(const std::set<uint64_t>& ids) const {
    for (uint64_t id : ids) {
      if (!node_->durable(id)) return false;
    }
    return true;
  }

  Request& new_request() {
    requests_.emplace_back();
    requests_.back().after_failure = failed_;
    return requests_.back();
  }

  void violate(std::string what) {
    if (violation_.empty()) violation_ = std::move(what);
  }

  std::mt19937_64 random_;
  bool with_failures_;
  std::unique_ptr<Reactor> reactor_;
  std::shared_ptr<HeldNode> node_;
  std::unique_ptr<Disk> disk_;
  std::list<Request> requests_;
  std::set<uint64_t> returned_;
  uint64_t last_id_ = 0;
  uint64_t flushes_asked_ = 0;
  std::set<uint64_t> pending_flushes_;
  bool in_force_;
  bool toggling_ = false;
  bool failed_ = false;
  std::string violation_;
};

constexpr CacheMode kModes[] = {CacheMode::Writeback, CacheMode::Writethrough};

std::string first_violation(Mutations mutations, int seeds, bool with_failures) {
  for (int seed = 0; seed < seeds; ++seed) {
    Run run(static_cast<uint64_t>(seed), mutations, kModes[seed % 2], with_failures);
    run.steps(120);
    if (!run.violation().empty()) return fmt::format("seed {}: {}", seed, run.violation());
  }
  return "";
}

TEST_CASE("D1-D6 hold in every interleaving of writes, flushes, failures and toggles") {
  CHECK(first_violation({}, 1500, false) == "");
  CHECK(first_violation({}, 1500, true) == "");
}

TEST_CASE("D5: the wrong orders are found when they are put in on purpose") {
  SUBCASE("flush 2 returns before flush 1") {
    CHECK(first_violation({.sequencer = SequencerMutation::ReturnBeforeEarlier}, 500, false) != "");
  }
  SUBCASE("flush 2 is skipped because flush 1 runs, although write 2 came between") {
    CHECK(first_violation({.sequencer = SequencerMutation::ShareUncoveredFlush}, 500, false) != "");
  }
  SUBCASE("dirty is cleared after the flush instead of before it") {
    CHECK(first_violation({.sequencer = SequencerMutation::CleanAfterInsteadOfBefore}, 500, false) != "");
  }
}

TEST_CASE("D2, D3: a missing flush after a write, and a toggle that flushes before it flips, are found") {
  CHECK(first_violation({.disk = DiskMutation::NoFlushAfterWrite}, 500, false) != "");
  CHECK(first_violation({.disk = DiskMutation::FlushBeforeFlip}, 500, false) != "");
}

}  // namespace
}  // namespace spindle
