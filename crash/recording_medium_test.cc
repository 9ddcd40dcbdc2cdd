// The medium that records: reproducible, honest about what is in flight, and its double that loses racing
// data.
#include "crash/recording_medium.h"

#include <doctest/doctest.h>

#include "block/record/record_node.h"
#include "block/test_support/environment.h"
#include "crash/image_node.h"
#include "crash/log_history.h"
#include "crash/test_support/toy_format.h"
#include "crash/workload.h"

namespace spindle::crash {
namespace {

std::string trace_of(const History& history) {
  std::string text;
  for (const Operation& operation : history.operations)
    text += describe(operation) + " " + std::to_string(operation.submitted) + "-" +
            std::to_string(operation.completed) + "\n";
  return text;
}

TEST_CASE(
    "medium: a seed brings the same history back, with flushes that began while writes were in flight") {
  auto reactor = std::move(*Reactor::create(64));
  const Subject subject = test::toy_subject();
  const auto record = [&](uint64_t seed) {
    auto history = record_program(*reactor, subject, "random", {.seed = seed, .steps = 80, .medium = {}});
    REQUIRE(history.has_value());
    return std::move(*history);
  };
  const History history = record(3);
  CHECK(trace_of(history) == trace_of(record(3)));
  CHECK(trace_of(history) != trace_of(record(4)));
  std::size_t in_flight = 0, overtaken = 0;
  for (std::size_t i = 0; i < history.operations.size(); ++i) {
    for (std::size_t j = i + 1; j < history.operations.size(); ++j) {
      const Operation &a = history.operations[i], &b = history.operations[j];
      if (b.kind == Operation::Kind::Flush && a.changes() && a.completed > b.submitted) ++in_flight;
      if (b.completed < a.completed) ++overtaken;
    }
  }
  CHECK(in_flight > 0);
  CHECK(overtaken > 0);
}

TEST_CASE("medium: a write beyond the end while the file grows is a growth race, and the double loses it") {
  auto reactor = std::move(*Reactor::create(64));
  for (const bool loses : {false, true}) {
    History history;
    history.base.resize(8 * kSector);
    RecordingMedium medium(*reactor, history, {.extends = true, .loses_racing_data = loses});
    Sector bytes;
    fill_pattern(bytes.data(), 8, 1);
    const iovec part{bytes.data(), bytes.size()};
    int done = 0;
    const auto finished_one = [&done](Result<> result) {
      CHECK(result.has_value());
      ++done;
    };
    spawn(medium.write(8 * kSector, Buffers(std::span(&part, 1)), {}), finished_one);
    spawn(medium.resize(16 * kSector), finished_one);
    while (medium.pending()) medium.complete_one();
    CHECK(done == 2);
    history.finish();
    REQUIRE(history.growth_races().size() == 1);
    CHECK(history.growth_races()[0].write == 0);
    CHECK(history.growth_races()[0].growth == 1);
    CHECK((medium.image().at(8) == kZeroContent) == loses);
  }
}

TEST_CASE("medium: without `extends` a write beyond the end is refused, as the file node refuses it") {
  auto reactor = std::move(*Reactor::create(64));
  History history;
  history.base.resize(8 * kSector);
  RecordingMedium medium(*reactor, history, {});
  Sector bytes{};
  const iovec part{bytes.data(), bytes.size()};
  CHECK(run_now(*reactor, medium.write(8 * kSector, Buffers(std::span(&part, 1)), {})).error()->kind ==
        ErrorKind::Invalid);
  CHECK(history.operations.empty());
}

TEST_CASE("log: a recorded medium's log gives the same operations and the same base") {
  auto reactor = std::move(*Reactor::create(64));
  const spindle::test::TempDir directory;
  const std::string path = directory.file("log");
  ContentStore contents;
  SectorImage image(contents);
  image.resize(64 * kSector);
  Sector bytes;
  fill_pattern(bytes.data(), 2, 1);
  image.write(2 * kSector, bytes.data(), kSector);
  auto child = std::make_shared<ImageNode>(*reactor, image);
  auto recorded = reactor->wait(RecordNode::open(child, path));
  REQUIRE_MESSAGE(recorded.has_value(), (recorded ? "" : recorded.error()->message()));
  const iovec part{bytes.data(), bytes.size()};
  CHECK(reactor->wait((*recorded)->write(5 * kSector + 100, Buffers(std::span(&part, 1)), {})).has_value());
  CHECK(reactor->wait((*recorded)->flush()).has_value());
  CHECK(reactor->wait((*recorded)->write_zeroes(0, 4096, {.unmap = true})).has_value());
  CHECK(reactor->wait((*recorded)->resize(32 * kSector)).has_value());
  CHECK(reactor->wait((*recorded)->close()).has_value());

  auto history = history_of_log(path);
  REQUIRE_MESSAGE(history.has_value(), (history ? "" : history.error()->message()));
  CHECK(!history->has_guest);
  CHECK(history->base.size() == 64 * kSector);
  CHECK(origin_of(history->contents->bytes(history->base.at(2))).write == 1);
  REQUIRE(history->operations.size() == 4);
  CHECK(history->operations[0].durable == history->operations[1].completed);
  CHECK(history->operations[2].durable == kNever);
  CHECK(history->operations[2].unmap);
  CHECK(history->crash_points().size() == 2);
  // All of it, in order, is what the child holds.
  for (const Operation& operation : history->operations) apply(operation, history->base);
  CHECK(history->base.hash() == image.hash());
  CHECK(history_of_log(directory.file("missing")).error()->kind == ErrorKind::NotFound);
}

}  // namespace
}  // namespace spindle::crash
