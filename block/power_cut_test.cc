// Power cuts in process, over what a guest's disk really stands on: Disk, volatile, the file node, a file. A
// program of writes, flushes and toggles runs at some depth; then volatile forgets what no flush covered, and
// the file is read. The same program with a guarantee left out on purpose must lose something, or it would
// prove nothing.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <list>
#include <random>
#include <span>
#include <vector>

#include "block/disk.h"
#include "block/filters/fault_node.h"
#include "block/filters/volatile_node.h"
#include "block/protocols/file_node.h"
#include "block/test_support/environment.h"

namespace spindle {
namespace {

constexpr uint64_t kRecords = 16;
constexpr uint64_t kRecordBytes = 4096;
constexpr uint64_t kRecordWords = kRecordBytes / sizeof(uint64_t);

struct Program {
  CacheMode cache = CacheMode::Writeback;
  DiskMutation disk = DiskMutation::None;
  SequencerMutation sequencer = SequencerMutation::None;
  bool toggles = false;
};

// Record r holds its latest version number in every word. Promised: the lowest version that must survive.
class Run {
 public:
  Run(const test::TempDir& directory, Program program, uint64_t seed)
      : program_(program), random_(seed), path_(directory.file("disk.img", kRecords * kRecordBytes)) {
    reactor_ = std::move(*Reactor::create(128));
    auto file = FileNode::open(*reactor_, {.path = path_});
    REQUIRE(file.has_value());
    volatile_ = std::make_shared<VolatileNode>(std::move(*file), VolatileNode::Options{});
    volatile_->sequencer().set_mutation(program.sequencer);
    disk_ = std::make_unique<Disk>(volatile_, DiskOptions{.id = "disk0", .cache = program.cache});
    disk_->set_mutation(program.disk);
    survivor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(survivor_ >= 0);
  }
  ~Run() {
    ::close(survivor_);
    CHECK(reactor_->wait(volatile_->close()).has_value());
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// Runs `steps` steps; returns how many promises a power cut would have broken at the worst of them.
  int broken_promises(int steps) {
    int worst = 0;
    for (int i = 0; i < steps; ++i) {
      step();
      if (random_() % 2 == 0) turn();
      worst = std::max(worst, count_lost());
    }
    reactor_->run_until([this] { return in_flight_ == 0; });
    return std::max(worst, count_lost());
  }

 private:
  struct Write {
    std::vector<uint64_t> words;
    iovec part{};
  };

  void step() {
    const auto what = random_() % 12;
    if (what < 8) {
      write(random_() % kRecords);
    } else if (what < 11 || !program_.toggles) {
      flush();
    } else {
      toggle();
    }
  }

  // One write of a record at a time, so that its latest version is never in doubt.
  void write(uint64_t record) {
    if (busy_[record]) return;
    busy_[record] = true;
    const uint64_t version = ++latest_[record];
    Write& request = writes_.emplace_back();
    request.words.assign(kRecordWords, version);
    request.part = {request.words.data(), kRecordBytes};
    ++in_flight_;
    const bool fua = random_() % 8 == 0;
    spawn(disk_->write(record * kRecordBytes, Buffers(std::span(&request.part, 1)), WriteFlags{.fua = fua}),
          [this, record, version, fua](Result<> result) {
            --in_flight_;
            busy_[record] = false;
            REQUIRE(result.has_value());
            completed_[record] = version;
            if (fua || !disk_->write_cache()) promised_[record] = version;
          });
  }

  void flush() {
    ++in_flight_;
    spawn(disk_->flush(), [this, covered = completed_](Result<> result) {
      --in_flight_;
      REQUIRE(result.has_value());
      promise(covered);
    });
  }

  void toggle() {
    const bool on = !disk_->write_cache();
    ++in_flight_;
    spawn(disk_->set_write_cache(on), [this, on, covered = completed_](Result<> result) {
      --in_flight_;
      REQUIRE(result.has_value());
      if (!on) promise(covered);
    });
  }

  void promise(const std::vector<uint64_t>& covered) {
    for (uint64_t r = 0; r < kRecords; ++r) promised_[r] = std::max(promised_[r], covered[r]);
  }

  void turn() {
    reactor_->wait([](Reactor& r) -> Task<void> { co_await r.yield(); }(*reactor_));
  }

  int count_lost() {
    REQUIRE(::pread(survivor_, image_.data(), kRecords * kRecordBytes, 0) == kRecords * kRecordBytes);
    int lost = 0;
    for (uint64_t r = 0; r < kRecords; ++r) {
      const auto words = std::span(image_).subspan(r * kRecordWords, kRecordWords);
      lost +=
          std::ranges::any_of(words, [&](uint64_t word) { return word < promised_[r] || word > latest_[r]; });
    }
    return lost;
  }

  Program program_;
  std::mt19937_64 random_;
  std::string path_;
  int survivor_ = -1;  // the file as the power cut leaves it
  std::vector<uint64_t> image_ = std::vector<uint64_t>(kRecords * kRecordWords);
  std::unique_ptr<Reactor> reactor_;
  std::shared_ptr<VolatileNode> volatile_;
  std::unique_ptr<Disk> disk_;
  std::list<Write> writes_;
  std::vector<uint64_t> latest_ = std::vector<uint64_t>(kRecords);
  std::vector<uint64_t> completed_ = latest_;
  std::vector<uint64_t> promised_ = latest_;
  std::vector<bool> busy_ = std::vector<bool>(kRecords);
  int in_flight_ = 0;
};

int broken_promises(Program program, int seeds) {
  // Memory is as good a medium here, and its flushes cost nothing.
  test::TempDir directory(std::filesystem::exists("/dev/shm") ? "/dev/shm"
                                                              : std::filesystem::temp_directory_path());
  REQUIRE(directory.ok());
  int broken = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    Run run(directory, program, static_cast<uint64_t>(seed));
    broken += run.broken_promises(150);
  }
  return broken;
}

TEST_CASE("D1, D2, D3: no power cut loses what was promised") {
  for (const CacheMode cache : {CacheMode::Writeback, CacheMode::Writethrough}) {
    for (const bool toggles : {false, true}) {
      CAPTURE(static_cast<int>(cache));
      CAPTURE(toggles);
      CHECK(broken_promises({.cache = cache, .toggles = toggles}, 20) == 0);
    }
  }
}

TEST_CASE("D2: without the flush after a write a power cut loses completed writes") {
  CHECK(broken_promises({.cache = CacheMode::Writethrough, .disk = DiskMutation::NoFlushAfterWrite}, 5) > 0);
}

TEST_CASE("D3: a toggle that flushes before it flips loses writes") {
  CHECK(broken_promises({.disk = DiskMutation::FlushBeforeFlip, .toggles = true}, 60) > 0);
}

TEST_CASE("D5: each wrong order of flushes loses writes") {
  for (const auto mutation : {SequencerMutation::ReturnBeforeEarlier, SequencerMutation::ShareUncoveredFlush,
                              SequencerMutation::CleanAfterInsteadOfBefore}) {
    CAPTURE(static_cast<int>(mutation));
    CHECK(broken_promises({.sequencer = mutation}, 60) +
              broken_promises({.cache = CacheMode::Writethrough, .sequencer = mutation}, 60) >
          0);
  }
}

TEST_CASE("D6: after a failed flush nothing more is written, not even at close") {
  struct Case {
    const char* fault;
    bool fua;
  };
  // Above volatile, so that only the top of the graph hears of the failure.
  for (const Case& each : {Case{"flush:1:EIO", false}, Case{"fua:1:EIO", true}}) {
    CAPTURE(each.fault);
    test::TempDir directory;
    REQUIRE(directory.ok());
    const std::string path = directory.file("disk.img", 1 << 16);
    auto reactor = std::move(*Reactor::create(64));
    auto file = FileNode::open(*reactor, {.path = path});
    REQUIRE(file.has_value());
    auto held = std::make_shared<VolatileNode>(std::move(*file), VolatileNode::Options{});
    auto rules = parse_fault_rules(each.fault);
    REQUIRE(rules.has_value());
    auto faulty = std::make_shared<FaultNode>(held, std::move(*rules));
    Disk disk(faulty, {.id = "disk0"});
    std::string text(512, 'w');
    const iovec part{text.data(), text.size()};
    const Buffers data(std::span(&part, 1));
    CHECK(reactor->wait(disk.write(0, data)).has_value());
    if (each.fua) {
      CHECK_FALSE(reactor->wait(disk.write(512, data, {.fua = true})).has_value());
    } else {
      CHECK_FALSE(reactor->wait(disk.flush()).has_value());
    }
    CHECK(reactor->wait(disk.write(1024, data)).error()->kind == ErrorKind::FlushFailed);
    CHECK(reactor->wait(disk.close()).error()->kind == ErrorKind::FlushFailed);
    std::string left(1 << 16, '?');
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(::pread(fd, left.data(), left.size(), 0) == static_cast<ssize_t>(left.size()));
    ::close(fd);
    CHECK(left == std::string(1 << 16, '\0'));
  }
}

}  // namespace
}  // namespace spindle
