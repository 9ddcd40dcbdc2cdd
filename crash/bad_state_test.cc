// Bad states: minimised, kept in a file, judged again; and files that are not what they should be.
#include "crash/bad_state.h"

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>

#include "block/test_support/environment.h"
#include "crash/campaign.h"
#include "crash/test_support/toy_format.h"

namespace spindle::crash {
namespace {

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Found {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create(64));
  Subject subject = test::toy_subject(test::ToyMutation::NoDataBarrier);
  std::vector<BadState> states;
  CampaignResult result;

  Found() {
    CampaignOptions options{.workloads = {"allocate", "discard"}, .states = 6000, .steps = 60};
    options.on_bad = [this](BadState state) { states.push_back(std::move(state)); };
    auto ran = run_campaign(*reactor, subject, options);
    REQUIRE(ran.has_value());
    result = std::move(*ran);
    REQUIRE(!states.empty());
  }
};

TEST_CASE("bad state: no operation can be left out of a minimised one, and each kind is told once") {
  Found found;
  uint32_t kinds = 0;
  for (BadState& state : found.states) {
    CHECK((kinds >> static_cast<unsigned>(state.kind) & 1) == 0);
    kinds |= 1u << static_cast<unsigned>(state.kind);
    CHECK(found.result.total.by_kind[static_cast<std::size_t>(state.kind)] > 0);
    CHECK(judge(*found.reactor, state, found.subject).has(state.kind));
    CHECK(!state.finding.empty());
    for (std::size_t i = 0; i < state.doubts.size(); ++i) {
      if (state.doubts[i].parts.empty()) continue;
      const auto parts = std::exchange(state.doubts[i].parts, {});
      CHECK(!judge(*found.reactor, state, found.subject).has(state.kind));
      state.doubts[i].parts = parts;
    }
  }
  CHECK(!found.result.clean());
  CHECK(found.result.invariants[0].broken > 0);
  CHECK(found.result.invariants[6].broken == 0);
}

TEST_CASE("bad state: its file brings back the same verdict, words and file") {
  Found found;
  const spindle::test::TempDir directory;
  const std::string path = directory.file("bad.json"), again = directory.file("again.json");
  BadState& state = found.states.front();
  state.format = "toy";
  state.options = {{"key", "value"}};
  REQUIRE(save(state, path).has_value());
  auto loaded = load_bad_state(path);
  REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error()->message()));
  CHECK(explain(*loaded) == explain(state));
  CHECK(explain(*loaded).find("there") != std::string::npos);
  const Verdict verdict = judge(*found.reactor, *loaded, found.subject);
  CHECK(verdict.has(state.kind));
  CHECK(verdict.findings.front().text == judge(*found.reactor, state, found.subject).findings.front().text);
  REQUIRE(save(*loaded, again).has_value());
  CHECK(text_of(path) == text_of(again));
}

TEST_CASE("bad state: a file that is damaged is refused with a reason, wherever the damage is") {
  Found found;
  const spindle::test::TempDir directory;
  const std::string path = directory.file("bad.json");
  found.states.front().format = "toy";
  REQUIRE(save(found.states.front(), path).has_value());
  const std::string good = text_of(path);
  const auto refused = [&](const std::string& text) {
    std::ofstream(path) << text;
    auto loaded = load_bad_state(path);
    if (loaded) return false;
    CHECK(loaded.error()->kind == ErrorKind::Invalid);
    CHECK(!loaded.error()->message().empty());
    return true;
  };
  CHECK(refused(""));
  CHECK(refused("[]"));
  CHECK(refused(good.substr(0, good.size() / 2)));
  const auto with = [&](const std::string& from, const std::string& to) {
    const auto at = good.find(from);
    REQUIRE(at != std::string::npos);
    return good.substr(0, at) + to + good.substr(at + from.size());
  };
  CHECK(refused(with("\"version\":1", "\"version\":2")));
  CHECK(refused(with("\"kind\":\"write\"", "\"kind\":\"wrote\"")));
  CHECK(refused(with("\"settled_size\":", "\"settled_size\":99999999999999")));
  CHECK(refused(with("\"contents\":[\"", "\"contents\":[\"?")));
  CHECK(refused(with("\"pieces\":[[", "\"pieces\":[[-")));
  // Whatever is put anywhere: read or refused, never worse.
  for (std::size_t at = 0; at < good.size(); at += 1 + good.size() / 300) {
    std::string text = good;
    text[at] = text[at] == '9' ? '[' : '9';
    std::ofstream(path) << text;
    if (auto loaded = load_bad_state(path)) static_cast<void>(judge(*found.reactor, *loaded, found.subject));
  }
  CHECK(load_bad_state(directory.file("missing")).error()->kind == ErrorKind::NotFound);
  for (const std::string& no_file : {directory.path(), std::string("/dev/null"), std::string("/dev/zero")}) {
    const auto loaded = load_bad_state(no_file);
    REQUIRE(!loaded.has_value());
    CHECK(loaded.error()->message().find("not a file") != std::string::npos);
  }
}

}  // namespace
}  // namespace spindle::crash
