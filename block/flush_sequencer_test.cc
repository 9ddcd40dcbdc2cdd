// The sequencer's promises one by one (D5, D6), in the order of events that makes each of them matter. The
// random interleavings are in durability_model_test.cc.
#include "block/flush_sequencer.h"

#include <doctest/doctest.h>

#include <optional>

#include "block/test_support/held_node.h"

namespace spindle {
namespace {

using test::HeldNode;
using test::settle;

struct Bench {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create(64));
  HeldNode node{*reactor};
  FlushSequencer& sequencer = node.sequencer();

  /// Starts a flush; the outcome appears in the returned slot when it is answered.
  std::shared_ptr<std::optional<FlushResult>> flush() {
    auto slot = std::make_shared<std::optional<FlushResult>>();
    spawn(sequencer.flush(), [slot](FlushResult result) { slot->emplace(std::move(result)); });
    return slot;
  }
  void finish_flush(bool fail = false, bool can_flush_again = false) {
    REQUIRE(node.held().size() == 1);
    node.release(node.held().front(), fail, can_flush_again);
    settle(*reactor);
  }
};

TEST_CASE("a node is dirty when opened: its first flush is issued, the next elided") {
  Bench bench;
  auto first = bench.flush();
  bench.finish_flush();
  REQUIRE(first->has_value());
  CHECK((*first)->outcome == FlushOutcome::Issued);
  auto second = bench.flush();
  REQUIRE(second->has_value());
  CHECK((*second)->outcome == FlushOutcome::Elided);
  CHECK(bench.node.flushes_started() == 1);
}

TEST_CASE("a flush asked for while one that covers it runs shares it, and does not return before it") {
  Bench bench;
  bench.sequencer.modified();
  auto first = bench.flush();
  auto second = bench.flush();
  CHECK_FALSE(first->has_value());
  CHECK_FALSE(second->has_value());
  bench.finish_flush();
  CHECK((*first)->outcome == FlushOutcome::Issued);
  CHECK((*second)->outcome == FlushOutcome::Coalesced);
  CHECK(bench.node.flushes_started() == 1);
}

TEST_CASE("a write that completes while a flush runs needs another flush, which its waiters share") {
  Bench bench;
  auto first = bench.flush();
  bench.sequencer.modified();
  auto second = bench.flush();
  auto third = bench.flush();
  bench.finish_flush();
  CHECK((*first)->outcome == FlushOutcome::Issued);
  CHECK_FALSE(second->has_value());
  CHECK_FALSE(third->has_value());
  bench.finish_flush();
  CHECK((*second)->outcome == FlushOutcome::Issued);
  CHECK((*third)->outcome == FlushOutcome::Coalesced);
  CHECK(bench.node.flushes_started() == 2);
}

TEST_CASE("a write that completes while a flush runs leaves the node dirty") {
  Bench bench;
  auto first = bench.flush();
  bench.sequencer.modified();
  bench.finish_flush();
  CHECK(bench.sequencer.dirty());
  auto second = bench.flush();
  bench.finish_flush();
  CHECK((*second)->outcome == FlushOutcome::Issued);
  CHECK_FALSE(bench.sequencer.dirty());
}

TEST_CASE("a failed flush fails everyone who relied on it and everyone after, and never cleans") {
  Bench bench;
  auto first = bench.flush();
  auto sharing = bench.flush();
  bench.sequencer.modified();
  auto needing_another = bench.flush();
  bench.finish_flush(true);
  for (auto& slot : {first, sharing, needing_another}) {
    REQUIRE(slot->has_value());
    CHECK((*slot)->outcome == FlushOutcome::Failed);
    REQUIRE_FALSE((*slot)->result.has_value());
    CHECK((*slot)->result.error()->kind == ErrorKind::FlushFailed);
    CHECK((*slot)->result.error()->number == EIO);
  }
  auto later = bench.flush();
  REQUIRE(later->has_value());
  CHECK((*later)->outcome == FlushOutcome::Failed);
  CHECK(bench.sequencer.dirty());
  CHECK(bench.node.flushes_started() == 1);
}

TEST_CASE(
    "a flush that lost nothing fails alone: who shared it gets another, and the node stays dirty until one "
    "succeeds") {
  Bench bench;
  auto first = bench.flush();
  auto sharing = bench.flush();
  auto sharing_too = bench.flush();
  bench.finish_flush(true, true);
  REQUIRE(first->has_value());
  CHECK((*first)->outcome == FlushOutcome::Failed);
  CHECK_FALSE((*first)->result.has_value());
  CHECK_FALSE(bench.sequencer.failure().has_value());
  CHECK(bench.sequencer.dirty());
  CHECK_FALSE(sharing->has_value());
  CHECK_FALSE(sharing_too->has_value());
  bench.finish_flush();
  REQUIRE(sharing->has_value());
  CHECK((*sharing)->outcome == FlushOutcome::Issued);
  REQUIRE(sharing_too->has_value());
  CHECK((*sharing_too)->outcome == FlushOutcome::Coalesced);
  CHECK_FALSE(bench.sequencer.dirty());
  CHECK(bench.node.flushes_started() == 2);
}

TEST_CASE("with elision off every flush is issued or shared") {
  Bench bench;
  bench.sequencer.set_elision(false);
  for (int i = 0; i < 2; ++i) {
    auto flush = bench.flush();
    auto shared = bench.flush();
    bench.finish_flush();
    CHECK((*flush)->outcome == FlushOutcome::Issued);
    CHECK((*shared)->outcome == FlushOutcome::Coalesced);
  }
  CHECK(bench.node.flushes_started() == 2);
}

}  // namespace
}  // namespace spindle
