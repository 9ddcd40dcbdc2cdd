// vdi over a host that fails: an error of one request stays one, a failed flush ends all writing (D6), and
// what an image says costs no more than it should.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>

#include <cerrno>
#include <filesystem>

#include "block/disk.h"
#include "block/filters/fault_node.h"
#include "block/little_endian.h"
#include "formats/test_support/vdi_bench.h"

namespace spindle {
namespace {

using test::VdiBench;

constexpr uint64_t kMiB = 1 << 20;

// A disk on an image whose file obeys fault rules.
struct FaultyDisk : VdiBench {
  std::string path = create("image", 64 * kMiB);
  std::shared_ptr<FaultNode> faults;
  std::shared_ptr<Node> node;
  std::unique_ptr<Disk> disk;

  explicit FaultyDisk(VdiNode::Options options = {}) {
    faults = std::make_shared<FaultNode>(file(path), std::vector<FaultRule>{});
    auto opened = reactor->wait(VdiNode::open(faults, options));
    require(opened);
    node = *opened;
    disk = std::make_unique<Disk>(node, DiskOptions{.id = "disk"});
  }
  Result<> write(uint64_t offset, std::string text) {
    text.resize(512, '.');
    const iovec part{text.data(), text.size()};
    return reactor->wait(disk->write(offset, Buffers(std::span(&part, 1))));
  }
  Result<> flush() { return reactor->wait(disk->flush()); }
  Result<> end() {
    auto result = reactor->wait(disk->close());
    disk.reset();
    node.reset();
    return result;
  }
  std::string left(uint64_t offset) {
    auto again = open(path);
    auto text = read(*again, offset, 4);
    close(again);
    return text;
  }
};

TEST_CASE("vdi faults: metadata that could not be written is an error of that flush alone") {
  for (const int number : {ENOSPC, EIO}) {
    for (const uint64_t nth : {1, 2}) {  // the header's count, the map's entry
      FaultyDisk bench;
      VdiBench::require(bench.write(0, "data"));
      bench.faults->add({.kind = FaultKind::Write, .from = nth, .number = number});
      const auto failed = bench.flush();
      REQUIRE(!failed.has_value());
      CHECK(failed.error()->number == number);
      VdiBench::require(bench.write(5 * kMiB, "more"));
      VdiBench::require(bench.flush());
      VdiBench::require(bench.end());
      CHECK(bench.left(0) == "data");
      CHECK(bench.left(5 * kMiB) == "more");
      CHECK(bench.check(bench.path).leaks == 0);
    }
  }
}

TEST_CASE("vdi faults: data that could not be written is an error of that write alone") {
  FaultyDisk bench;
  bench.faults->add({.kind = FaultKind::Write, .number = ENOSPC});
  CHECK(bench.write(0, "lost").error()->kind == ErrorKind::NoSpace);
  VdiBench::require(bench.flush());
  VdiBench::require(bench.write(0, "data"));
  VdiBench::require(bench.end());
  CHECK(bench.left(0) == "data");
}

TEST_CASE("vdi faults: D6 holds whoever the flush was for: the guest, the idle moment, each allocation") {
  const VdiNode::Options idle{.commit = {.idle = std::chrono::milliseconds(1)}};
  const VdiNode::Options eager{.commit = {.policy = CommitPolicy::Eager}};
  for (const auto& options : {VdiNode::Options{}, idle, eager}) {
    FaultyDisk bench(options);
    bench.faults->add({.kind = FaultKind::Flush, .number = EIO});
    const auto written = bench.write(0, "lost");
    CHECK(written.has_value() == (options.commit.policy != CommitPolicy::Eager));
    if (options.commit.idle == idle.commit.idle) {
      const auto& commit = static_cast<VdiNode&>(*bench.node).commit();
      bench.reactor->run_until([&] { return commit.failure().has_value(); });
    } else if (written) {
      CHECK(!bench.flush().has_value());
    }
    const auto before = test::run_command("md5sum " + bench.path).output;
    for (int i = 0; i < 3; ++i) {
      CHECK(bench.write(0, "more").error()->kind == ErrorKind::FlushFailed);
      CHECK(bench.write((3 + i) * kMiB, "more").error()->kind == ErrorKind::FlushFailed);
      CHECK(bench.flush().error()->kind == ErrorKind::FlushFailed);
    }
    CHECK(!bench.end().has_value());
    CHECK(test::run_command("md5sum " + bench.path).output == before);
  }
}

TEST_CASE("vdi faults: an idle commit that fails for lack of space is tried again") {
  FaultyDisk bench({.commit = {.idle = std::chrono::milliseconds(1)}});
  bench.faults->add({.kind = FaultKind::Write, .from = 2, .number = ENOSPC});
  VdiBench::require(bench.write(0, "data"));
  const auto& commit = static_cast<VdiNode&>(*bench.node).commit();
  bench.reactor->run_until([&] { return commit.commits() != 0; });
  CHECK(bench.header(bench.path).allocated != 0);
  VdiBench::require(bench.end());
}

TEST_CASE("vdi faults: a resize that fails for lack of space leaves the disk as it was and at work") {
  for (const uint64_t nth : {1, 2, 3}) {
    FaultyDisk bench;
    VdiBench::require(bench.write(0, "data"));
    VdiBench::require(bench.flush());
    bench.faults->add({.kind = FaultKind::Write, .from = nth, .number = ENOSPC});
    const auto resized = bench.reactor->wait(bench.disk->resize(uint64_t{20} << 30));
    bench.faults->clear();
    CHECK(bench.disk->size() == bench.node->size());
    CHECK(resized.has_value() == (bench.node->size() != 64 * kMiB));
    VdiBench::require(bench.write(7 * kMiB, "more"));
    VdiBench::require(bench.flush());
    VdiBench::require(bench.end());
    CHECK(bench.left(0) == "data");
    CHECK(bench.left(7 * kMiB) == "more");
    CHECK(bench.check(bench.path).corruptions == 0);
  }
}

TEST_CASE("vdi faults: a resize whose flush fails ends all writing (D6)") {
  for (const uint64_t nth : {2, 3, 4}) {
    FaultyDisk bench;
    VdiBench::require(bench.write(0, "data"));
    VdiBench::require(bench.flush());
    bench.faults->add({.kind = FaultKind::Flush, .from = nth, .number = EIO});
    CHECK(!bench.reactor->wait(bench.disk->resize(uint64_t{20} << 30)).has_value());
    CHECK(bench.write(0, "more").error()->kind == ErrorKind::FlushFailed);
    CHECK(!bench.flush().has_value());
    CHECK(!bench.end().has_value());
    CHECK(bench.left(0) == "data");
    CHECK(bench.check(bench.path).corruptions == 0);
  }
}

TEST_CASE("vdi faults: what a resize made ahead is given back when the image is closed") {
  FaultyDisk bench;
  VdiBench::require(bench.write(0, "data"));
  VdiBench::require(bench.reactor->wait(bench.disk->resize(80 * kMiB)));
  VdiBench::require(bench.end());
  const auto report = bench.check(bench.path);
  CHECK(report.leaks == 0);
  CHECK(std::filesystem::file_size(bench.path) == bench.header(bench.path).place_offset(1));
}

TEST_CASE("vdi faults: where the file may grow only a little, it grows a little") {
  ::signal(SIGXFSZ, SIG_IGN);
  FaultyDisk bench;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit limited{.rlim_cur = 6 * kMiB, .rlim_max = before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limited) == 0);
  unsigned written = 0;
  while (written < 64 && bench.write(written * kMiB, "data").has_value()) ++written;
  CHECK(written == 5);
  CHECK(bench.write(40 * kMiB, "data").error()->kind == ErrorKind::NoSpace);
  VdiBench::require(bench.write(0, "over"));
  VdiBench::require(bench.flush());
  VdiBench::require(bench.end());
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(bench.left(4 * kMiB) == "data");
}

TEST_CASE("vdi faults: an entry far behind all others costs no memory") {
  VdiBench bench;
  const std::string path = bench.create("image", 64 * 512, {{"block_size", "512"}});
  const auto layout = bench.header(path);
  constexpr uint32_t kFar = 1u << 28;
  {
    std::string entry(4, '\0');
    put32(reinterpret_cast<std::byte*>(entry.data()), kFar);
    auto file = bench.file(path);
    bench.write(*file, layout.map_offset, entry);
    const auto grown = bench.reactor->wait(file->resize(layout.place_offset(kFar + 1)));
    VdiBench::require(bench.reactor->wait(file->close()));
    if (!grown) return test::skipped("a sparse file of 128 GiB: " + grown.error()->message());
  }
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  auto node = bench.open(path);
  bench.write(*node, 512, std::string(512, 'x'));
  bench.close(node);
  CHECK(bench.check(path).corruptions == 1);
  CHECK(bench.check(path, Repair::All).corruptions == 0);
  ::getrusage(RUSAGE_SELF, &after);
  CHECK(after.ru_maxrss - before.ru_maxrss < 64 << 10);
  CHECK(std::filesystem::file_size(path) == layout.place_offset(2));
}

TEST_CASE("vdi create: the header has what VirtualBox asks of one of its size") {
  VdiBench bench;
  const std::string path = bench.create("image", kMiB);
  auto file = bench.file(path);
  const auto head = bench.read(*file, 0, 512);
  CHECK(get32(reinterpret_cast<const std::byte*>(head.data()) + 0x48) == 0x190);
  CHECK(get32(reinterpret_cast<const std::byte*>(head.data()) + 0x1d4) == 512);
  VdiBench::require(bench.reactor->wait(file->close()));
}

TEST_CASE("vdi resize: a full image gets a larger map without a moment that other programs refuse") {
  VdiBench bench;
  for (const auto& [mib, possible] : {std::pair{120, true}, std::pair{128, false}}) {
    const std::string path = bench.dir.file("full");
    if (!test::have_program("qemu-img")) return test::skipped("qemu-img is not installed");
    std::filesystem::remove(path);
    REQUIRE(test::run_command(fmt::format("qemu-img create -f vdi {} {}M", path, mib)).status == 0);
    auto node = bench.open(path);
    for (int i = 0; i < mib; ++i) bench.write(*node, i * kMiB, "data");
    const auto resized = bench.reactor->wait(node->resize(uint64_t{4} << 30));
    CHECK(resized.has_value() == possible);
    bench.write(*node, (mib - 1) * kMiB, "over");
    bench.close(node);
    CHECK(test::run_command("qemu-img check -f vdi " + path).status == 0);
    CHECK(bench.header(path).allocated <= bench.header(path).blocks);
  }
}

}  // namespace
}  // namespace spindle
