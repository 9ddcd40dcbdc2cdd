// The commit by itself: its stages in their order, one at a time, what waits for what, and what failures
// leave. That the order is enough is for the crash tests to show.
#include "formats/commit/commit.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <coroutine>
#include <deque>
#include <string>
#include <utility>

namespace spindle {
namespace {

// A file that notes what it is asked, in order, and can hold operations back or fail them.
class ScriptedFile final : public Node {
 public:
  explicit ScriptedFile(Reactor& reactor) : Node(reactor) { facts_.name = "scripted"; }

  std::string log;
  int fail_write = 0;  // errno of the next
  int fail_flush = 0;
  bool hold = false;
  std::deque<std::coroutine_handle<>> held;

  void release_one() {
    REQUIRE(!held.empty());
    const auto handle = held.front();
    held.pop_front();
    handle.resume();
  }

  const NodeFacts& facts() const override { return facts_; }
  uint64_t size() const override { return 1 << 20; }
  Task<Result<>> read(uint64_t, Buffers) override { co_return Result<>{}; }
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags) override {
    log += static_cast<const char*>(buffers.parts[0].iov_base)[0];
    co_await gate();
    co_return ended(fail_write, "write", offset);
  }
  Task<Result<>> write_zeroes(uint64_t, uint64_t, ZeroFlags) override { co_return Result<>{}; }
  Task<Result<>> discard(uint64_t, uint64_t) override { co_return Result<>{}; }
  Task<Result<>> flush() override {
    log += '|';
    co_await gate();
    co_return ended(fail_flush, "fdatasync", 0);
  }
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override {
    co_return Extent{.offset = offset, .length = length};
  }
  Task<Result<>> resize(uint64_t) override { co_return Result<>{}; }
  Task<Result<>> close() override { co_return Result<>{}; }

 private:
  struct Gate {
    ScriptedFile& file;
    bool await_ready() const { return !file.hold; }
    void await_suspend(std::coroutine_handle<> handle) { file.held.push_back(handle); }
    void await_resume() const {}
  };
  Gate gate() { return {*this}; }
  static Result<> ended(int& fail, const char* operation, uint64_t offset) {
    if (fail == 0) return {};
    return std::unexpected(Error::from_errno(std::exchange(fail, 0), operation, "scripted", offset));
  }

  NodeFacts facts_;
};

// A format whose metadata are letters: capitals go first, the others are pointers.
class Letters final : public Commit::Owner {
 public:
  std::string counts, pointers;
  bool barrier = false;
  unsigned published_times = 0;
  std::string released;

  Commit::Batch freeze() override {
    Commit::Batch batch{.before = writes(counts), .barrier = barrier, .pointers = writes(pointers)};
    frozen_counts_ = std::exchange(counts, {});
    frozen_pointers_ = std::exchange(pointers, {});
    return batch;
  }
  void published() override {
    ++published_times;
    released += frozen_counts_ + frozen_pointers_;
  }
  void restore() override {
    counts = frozen_counts_ + counts;
    pointers = frozen_pointers_ + pointers;
  }
  uint64_t waiting_bytes() const override { return counts.size() + pointers.size(); }

 private:
  static std::vector<Commit::Write> writes(const std::string& letters) {
    std::vector<Commit::Write> made;
    for (const char letter : letters)
      made.push_back({.offset = 0, .bytes = {static_cast<std::byte>(letter)}});
    return made;
  }
  std::string frozen_counts_, frozen_pointers_;
};

struct Rig {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create());
  ScriptedFile file{*reactor};
  Letters letters;
  Commit commit;

  explicit Rig(Commit::Options options = {}) : commit(file, letters, options) {}
  ~Rig() { reactor->wait(commit.close()); }

  Result<> flush() { return reactor->wait(commit.flush()); }
  Result<> changed() { return reactor->wait(commit.changed()); }
  std::string log() { return std::exchange(file.log, {}); }
};

TEST_CASE("commit: counts, a barrier if a pointer needs one, pointers, the barrier of the flush") {
  Rig rig;
  rig.letters.counts = "AB";
  rig.letters.pointers = "ab";
  rig.letters.barrier = true;
  CHECK(rig.flush().has_value());
  CHECK(rig.log() == "AB|ab|");
  CHECK(rig.letters.released == "ABab");

  rig.letters.counts = "A";
  rig.letters.pointers = "a";
  rig.letters.barrier = false;
  CHECK(rig.flush().has_value());
  CHECK(rig.log() == "Aa|");

  // Counts alone point at nothing, so they need none either.
  rig.letters.counts = "A";
  rig.letters.barrier = true;
  CHECK(rig.flush().has_value());
  CHECK(rig.log() == "A|");
  CHECK(rig.flush().has_value());
  CHECK(rig.log() == "|");
}

TEST_CASE("commit: what changes while one runs is the next one's, and flushes do not mix") {
  Rig rig;
  rig.letters.pointers = "a";
  rig.letters.barrier = true;
  rig.file.hold = true;
  int ended = 0;
  spawn(rig.commit.flush(), [&](Result<> result) { ended += result.has_value(); });
  CHECK(rig.file.log == "|");
  rig.letters.pointers = "b";
  spawn(rig.commit.flush(), [&](Result<> result) { ended += result.has_value(); });
  rig.file.release_one();  // the barrier
  CHECK(rig.file.log == "|a");
  rig.file.release_one();
  rig.file.release_one();
  CHECK(ended == 1);
  CHECK(rig.letters.released == "a");
  rig.file.hold = false;
  rig.reactor->run_until([&] { return ended == 2; });
  CHECK(rig.log() == "|a||b|");
  CHECK(rig.letters.released == "ab");
}

TEST_CASE("commit: a write that fails is an ordinary error, and is tried again") {
  for (const int number : {ENOSPC, EIO}) {
    Rig rig;
    rig.letters.counts = "A";
    rig.letters.pointers = "ab";
    rig.file.fail_write = number;
    const auto first = rig.flush();
    REQUIRE(!first.has_value());
    CHECK(first.error()->number == number);
    CHECK(rig.letters.published_times == 0);
    rig.letters.pointers += "c";
    rig.log();
    CHECK(rig.flush().has_value());
    CHECK(rig.log() == "Aabc|");
  }
}

TEST_CASE("commit: after a barrier that failed nothing is written and every flush fails (D6)") {
  for (const bool first_barrier : {true, false}) {
    Rig rig({.max_waiting = 1});
    rig.letters.pointers = "a";
    rig.letters.barrier = first_barrier;
    rig.file.fail_flush = EIO;
    const auto failed = rig.flush();
    REQUIRE(!failed.has_value());
    CHECK(failed.error()->kind == ErrorKind::FlushFailed);
    CHECK(failed.error()->number == EIO);
    CHECK(rig.log() == (first_barrier ? "|" : "a|"));
    CHECK(rig.letters.released.empty());
    for (int i = 0; i < 2; ++i) CHECK(rig.flush().error()->kind == ErrorKind::FlushFailed);
    CHECK(!rig.changed().has_value());
    CHECK(rig.log().empty());
    CHECK(rig.letters.published_times == 0);
  }
}

TEST_CASE("commit: abandoned from outside it writes nothing either") {
  Rig rig({.idle = std::chrono::milliseconds(1)});
  rig.letters.pointers = "a";
  CHECK(rig.changed().has_value());
  rig.commit.abandon();
  bool later = false;
  spawn(rig.reactor->sleep(std::chrono::milliseconds(20)), [&] { later = true; });
  rig.reactor->run_until([&] { return later; });
  CHECK(!rig.flush().has_value());
  CHECK(rig.log().empty());
}

TEST_CASE("commit: ordered waits for a flush, for too much waiting, or for a while") {
  {
    Rig rig({.max_waiting = 3, .idle = {}});
    rig.letters.pointers = "ab";
    CHECK(rig.changed().has_value());
    CHECK(rig.log().empty());
    rig.letters.pointers = "abc";
    CHECK(rig.changed().has_value());
    CHECK(rig.log() == "abc|");
  }
  Rig rig({.idle = std::chrono::milliseconds(1)});
  rig.letters.pointers = "a";
  CHECK(rig.changed().has_value());
  rig.reactor->run_until([&] { return rig.letters.published_times == 1; });
  CHECK(rig.log() == "a|");
}

TEST_CASE("commit: eager flushes behind each change, none never; who waited shares") {
  Rig eager({.policy = CommitPolicy::Eager});
  eager.letters.counts = "A";
  eager.letters.pointers = "a";
  eager.letters.barrier = true;
  CHECK(eager.changed().has_value());
  CHECK(eager.log() == "Aa|");

  Rig none({.policy = CommitPolicy::None});
  none.letters.counts = "A";
  none.letters.pointers = "a";
  none.letters.barrier = true;
  CHECK(none.changed().has_value());
  CHECK(none.log() == "Aa");
  CHECK(none.flush().has_value());
  CHECK(none.log() == "|");

  // Three changes while one is written: the next write has them all.
  eager.file.hold = true;
  int ended = 0;
  const auto count = [&](Result<> result) { ended += result.has_value(); };
  eager.letters.pointers = "a";
  spawn(eager.commit.changed(), count);
  for (const char letter : {'b', 'c', 'd'}) {
    eager.letters.pointers += letter;
    spawn(eager.commit.changed(), count);
  }
  eager.file.release_one();
  eager.file.hold = false;
  eager.file.release_one();
  eager.reactor->run_until([&] { return ended == 4; });
  CHECK(eager.log() == "a|bcd|");
}

TEST_CASE("commit: policies have the names that users type") {
  for (const auto policy : {CommitPolicy::Ordered, CommitPolicy::Eager, CommitPolicy::None})
    CHECK(parse_commit_policy(to_string(policy)) == policy);
  CHECK(!parse_commit_policy("Ordered").has_value());
  CHECK(!parse_commit_policy("").has_value());
}

}  // namespace
}  // namespace spindle
