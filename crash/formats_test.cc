// The formats that come with the program, through the registry, as users reach them: seconds of what
// scripts/crash-soak does for hours.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "block/test_support/environment.h"
#include "crash/campaign.h"
#include "crash/other_reader.h"
#include "formats/register_formats.h"

namespace spindle::crash {
namespace {

Result<Subject> try_subject(const std::string& name, FormatOptions options, bool small) {
  FormatRegistry registry;
  register_formats(registry);
  const Format* format = registry.find(name);
  REQUIRE(format);
  if (small) options = small_blocks(*format, std::move(options));
  return subject_of(*format, options);
}

Subject subject(const std::string& name, FormatOptions options, bool small = true) {
  auto made = try_subject(name, std::move(options), small);
  REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error()->message()));
  return *made;
}

CampaignResult run(const Subject& subject, bool write_back, uint64_t states, Tearing tearing = {}) {
  auto reactor = std::move(*Reactor::create(64));
  std::string first;
  CampaignOptions options{.states = states, .steps = 60, .write_back = write_back, .tearing = tearing};
  options.on_bad = [&](BadState state) {
    if (first.empty()) first = fmt::format("{} {}: {}", state.workload, state.seed, state.finding);
  };
  auto result = run_campaign(*reactor, subject, options);
  REQUIRE_MESSAGE(result.has_value(), (result ? "" : result.error()->message()));
  MESSAGE(subject.name << std::string(write_back ? " write-back: " : " write-through: ")
                       << result->total.distinct.size() << " states, " << result->total.corrupt << " corrupt "
                       << first);
  return std::move(*result);
}

TEST_CASE("D8: raw and vdi with ordered metadata lose nothing in any state, and leak at worst") {
  for (const auto& [name, options] :
       {std::pair<std::string, FormatOptions>{"raw", {}}, {"vdi", {{"metadata-flush", "ordered"}}}}) {
    for (const bool write_back : {true, false}) {
      const CampaignResult result = run(subject(name, options), write_back, 12'000);
      CHECK(result.clean());
      for (const Invariant& invariant : result.invariants) {
        CAPTURE(invariant.name);
        CHECK(invariant.broken == 0);
        // Raw has nothing to repair; each cache mode has an invariant of its own.
        if (name == "vdi" &&
            invariant.name != (write_back ? "write-through-durable-at-completion" : "flushed-is-durable"))
          CHECK(invariant.tested);
      }
    }
  }
  CHECK(run(subject("vdi", {}), true, 5'000, {.unit = 4096}).clean());
}

TEST_CASE("metadata-flush=eager and none: what they can lose is found") {
  for (const char* policy : {"eager", "none"}) {
    const CampaignResult result = run(subject("vdi", {{"metadata-flush", policy}}), true, 4'000);
    CAPTURE(policy);
    CHECK(result.total.corrupt > 0);
    CHECK(result.total.by_kind[static_cast<std::size_t>(Corruption::CheckError)] > 0);
  }
}

TEST_CASE("D8: QEMU's tools agree: ordered is safe in their hands, none is not") {
  auto reader = OtherReader::create();
  if (!reader) return spindle::test::skipped(reader.error()->message());
  auto reactor = std::move(*Reactor::create(64));
  for (const char* policy : {"ordered", "none"}) {
    const Subject vdi = subject("vdi", {{"metadata-flush", policy}}, false);
    auto block = block_of(*reactor, vdi);
    REQUIRE(block.has_value());
    CHECK(*block == 1 << 20);
    uint64_t dangerous = 0;
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      auto history = record_program(*reactor, vdi, "allocate", {.seed = seed, .steps = 60, .medium = {}});
      REQUIRE(history.has_value());
      auto counts = ask_other_reader(**reader, *reactor, *history, vdi, "vdi", *block, {}, seed, 10);
      REQUIRE_MESSAGE(counts.has_value(), (counts ? "" : counts.error()->message()));
      CHECK(counts->states == 10);
      dangerous += counts->dangerous;
      if (std::string_view(policy) == "ordered") CHECK_MESSAGE(counts->dangerous == 0, counts->first);
    }
    if (std::string_view(policy) == "none") CHECK(dangerous > 0);
  }
}

TEST_CASE("subject: an option that the format does not have is named") {
  FormatRegistry registry;
  register_formats(registry);
  auto made = subject_of(*registry.find("vdi"), {{"colour", "blue"}});
  REQUIRE(!made.has_value());
  CHECK(made.error()->message().find("colour") != std::string::npos);
}

}  // namespace
}  // namespace spindle::crash
