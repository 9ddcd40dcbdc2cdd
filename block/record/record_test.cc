// Logs read back: they hold what was done, in order, and whatever a log's file has become, a reader gets the
// entries before the damage and no more.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "block/disk_spec.h"
#include "block/filters/fault_node.h"
#include "block/graph.h"
#include "block/record/log_reader.h"
#include "block/record/record_node.h"
#include "block/test_support/file_bench.h"
#include "block/test_support/held_node.h"
#include "block/test_support/model_check.h"
#include "block/test_support/recorded.h"

namespace spindle::record {
namespace {

using test::FileBench;
using test::read_log;
using test::Recorded;

std::shared_ptr<Node> recording(FileBench& bench, std::shared_ptr<Node> child, const std::string& log) {
  auto node = bench.reactor->wait(RecordNode::open(std::move(child), log));
  REQUIRE_MESSAGE(node.has_value(), (node ? "" : node.error()->message()));
  return *node;
}

std::vector<char> content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void put_content(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// A short log with one of each.
std::string small_log(FileBench& bench) {
  std::string path = bench.dir.file("small.log");
  auto node = recording(bench, bench.open({.path = bench.dir.file("small", 4096)}), path);
  CHECK(bench.write(*node, 0, "hello").has_value());
  CHECK(bench.write(*node, 100, std::string(512, 'x'), true).has_value());
  CHECK(bench.reactor->wait(node->flush()).has_value());
  CHECK(bench.reactor->wait(node->write_zeroes(0, 100, {.unmap = true})).has_value());
  CHECK(bench.reactor->wait(node->discard(0, 4096)).has_value());
  CHECK(bench.reactor->wait(node->resize(8192)).has_value());
  CHECK(bench.reactor->wait(node->close()).has_value());
  return path;
}

TEST_CASE("record: each operation is there with its data, flags and outcome") {
  FileBench bench;
  const auto log = read_log(small_log(bench));
  CHECK(log.header.size == 4096);
  CHECK(log.end == LogEnd::Closed);
  std::vector<Entry> submitted;
  for (const auto& [entry, content] : log.entries) {
    if (entry.type == EntryType::Submit) submitted.push_back(entry);
    if (entry.type == EntryType::Complete) {
      REQUIRE(!submitted.empty());
      CHECK(entry.id == submitted.back().id);  // one after the other, here
      CHECK(entry.operation == submitted.back().operation);
      CHECK(entry.error == 0);
    }
  }
  REQUIRE(submitted.size() == 6);
  CHECK(log.entries[0].second == test::bytes_of("hello"));
  CHECK(submitted[1].fua);
  CHECK(submitted[1].offset == 100);
  CHECK(submitted[1].length == 512);
  CHECK(submitted[2].operation == Operation::Flush);
  CHECK(submitted[3].unmap);
  CHECK(submitted[4].operation == Operation::Discard);
  CHECK(submitted[5].offset == 4096);
  CHECK(submitted[5].length == 8192);
}

TEST_CASE("record: base and operations make up what the file holds") {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    FileBench bench;
    const std::string path = bench.dir.file("image", 300'000), log = bench.dir.file("log");
    {
      auto before = bench.open({.path = path});
      CHECK(bench.write(*before, 70'000, std::string(100'000, 'b')).has_value());
      CHECK(bench.reactor->wait(before->close()).has_value());
    }
    auto node = recording(bench, bench.open({.path = path, .grows = true}), log);
    test::ModelCheck model(*bench.reactor, *node, {.seed = seed, .resize = true});
    model.run();
    CHECK(bench.reactor->wait(node->close()).has_value());
    const Recorded recorded = read_log(log);
    CHECK(recorded.end == LogEnd::Closed);
    const auto file = content_of(path);
    auto rebuilt = test::rebuild(recorded);
    REQUIRE(rebuilt.bytes.size() == file.size());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < file.size(); ++i)
      wrong += rebuilt.bytes[i] != static_cast<std::byte>(file[i]) && !(rebuilt.loose[i] && file[i] == 0);
    CHECK(wrong == 0);
  }
}

TEST_CASE("record: a write in flight when a flush is submitted completes after it in the log") {
  FileBench bench;
  auto held = std::make_shared<test::HeldNode>(*bench.reactor);
  const std::string path = bench.dir.file("log");
  auto node = recording(bench, held, path);
  uint64_t words[2] = {1, 2};
  const iovec parts[2] = {{&words[0], 8}, {&words[1], 8}};
  int done = 0;
  const auto count = [&done](Result<> result) { done += result.has_value(); };
  for (int i : {0, 1}) {
    spawn(node->write(i * 512u, Buffers(std::span(&parts[i], 1)), {}), count);
    bench.reactor->run_until([&] { return held->held().size() == i + 1u; });
  }
  held->release(held->held()[1], false);
  bench.reactor->run_until([&] { return done == 1; });
  spawn(node->flush(), count);
  bench.reactor->run_until([&] { return held->held().size() == 2; });
  held->release(held->held()[0], false);
  held->release(held->held()[0], false);
  bench.reactor->run_until([&] { return done == 3; });
  CHECK(bench.reactor->wait(node->close()).has_value());
  std::string order;
  for (const auto& [entry, content] : read_log(path).entries) {
    if (entry.type == EntryType::Submit) order += 's';
    if (entry.type == EntryType::Complete) order += 'c';
    if (entry.id != 0) order += static_cast<char>('0' + entry.id);
  }
  CHECK(order == "s1s2c2s3c1c3");
}

TEST_CASE("record: log and file hold the same bytes, whatever the guest does to its memory meanwhile") {
  FileBench bench;
  const std::string path = bench.dir.file("image", 4096), log = bench.dir.file("log");
  auto slow =
      std::make_shared<FaultNode>(bench.open({.path = path}), *parse_fault_rules("write:1:always:delay=30"));
  auto node = recording(bench, slow, log);
  std::string memory(4096, 'a');
  const iovec part{memory.data(), memory.size()};
  bool done = false;
  spawn(node->write(0, Buffers(std::span(&part, 1)), {}), [&](Result<>) { done = true; });
  memory.assign(4096, 'z');
  bench.reactor->run_until([&] { return done; });
  CHECK(bench.reactor->wait(node->close()).has_value());
  const auto file = content_of(path);
  CHECK(test::rebuild(read_log(log)).bytes == test::bytes_of({file.begin(), file.end()}));
}

TEST_CASE("record: what failed is logged with its errno") {
  FileBench bench;
  const std::string log = bench.dir.file("log");
  auto faulty = std::make_shared<FaultNode>(bench.open({.path = bench.dir.file("image", 4096)}),
                                            *parse_fault_rules("write:2:ENOSPC;flush:1:EIO"));
  auto node = recording(bench, faulty, log);
  CHECK(bench.write(*node, 0, "good").has_value());
  CHECK(!bench.write(*node, 0, "bad").has_value());
  CHECK(!bench.reactor->wait(node->flush()).has_value());
  CHECK(bench.reactor->wait(node->close()).has_value());
  std::vector<int> errors;
  for (const auto& [entry, content] : read_log(log).entries) {
    if (entry.type == EntryType::Complete) errors.push_back(entry.error);
  }
  CHECK(errors == std::vector<int>{0, ENOSPC, EIO});
}

TEST_CASE("record: with a log that is full every change fails, and says why; reads go on") {
  FileBench bench;
  const std::string path = bench.dir.file("log");
  auto node = recording(bench, bench.open({.path = bench.dir.file("image", 1 << 20)}), path);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit low{.rlim_cur = 17 << 20, .rlim_max = before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &low) == 0);
  Result<> failed;
  int good = 0;
  for (; good < 100 && failed; ++good) failed = bench.write(*node, 0, std::string(1 << 20, 'x'));
  CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
  signal(SIGXFSZ, handler);
  REQUIRE(!failed.has_value());
  CHECK(good > 5);
  CHECK(failed.error()->kind == ErrorKind::Io);  // werror=enospc would have the guest wait for nothing
  CHECK(failed.error()->message().find(path) != std::string::npos);
  CHECK(!bench.write(*node, 0, "more").has_value());  // though there would be space again
  CHECK(!bench.reactor->wait(node->flush()).has_value());
  CHECK(!bench.reactor->wait(node->discard(0, 4096)).has_value());
  CHECK(bench.read(*node, 0, 4) == "xxxx");
  CHECK(!bench.reactor->wait(node->close()).has_value());
  CHECK(read_log(path).end == LogEnd::Cut);
}

TEST_CASE("record: whoever hears of an end finds it in the log, and all that came before") {
  FileBench bench;
  const std::string path = bench.dir.file("log", 0);
  auto child = bench.open({.path = bench.dir.file("image", 1 << 20)});
  // The entry of the first write takes long to reach the log's file, that of the second does not.
  auto slow = std::make_shared<FaultNode>(bench.open({.path = path, .grows = true}),
                                          *parse_fault_rules("write:2:delay=50"));
  auto log = bench.reactor->wait(LogWriter::create(slow, RecordNode::header_of(*child)));
  REQUIRE(log.has_value());
  auto node = *bench.reactor->wait(RecordNode::open(child, std::move(*log)));
  const auto ends = [&] {
    std::string ids;
    for (const auto& [entry, content] : read_log(path).entries) {
      if (entry.type == EntryType::Complete) ids += static_cast<char>('0' + entry.id);
    }
    return ids;
  };
  std::string text(4096, 'x');
  const iovec part{text.data(), text.size()};
  int done = 0;
  for (uint64_t offset : {0, 8192}) {
    spawn(node->write(offset, Buffers(std::span(&part, 1)), {}), [&](Result<> result) {
      CHECK(result.has_value());
      CHECK(ends().size() >= static_cast<std::size_t>(++done));
    });
  }
  bench.reactor->run_until([&] { return done == 2; });
  CHECK(bench.reactor->wait(node->flush()).has_value());
  CHECK(ends().ends_with('3'));
  CHECK(bench.reactor->wait(node->close()).has_value());
}

TEST_CASE("record: an end that cannot be logged is an error, though the operation was done") {
  FileBench bench;
  auto child = bench.open({.path = bench.dir.file("image", 4096)});
  auto full = std::make_shared<FaultNode>(bench.open({.path = bench.dir.file("log", 0), .grows = true}),
                                          *parse_fault_rules("write:3:ENOSPC:always"));
  auto log = bench.reactor->wait(LogWriter::create(full, RecordNode::header_of(*child)));
  REQUIRE(log.has_value());
  auto node = *bench.reactor->wait(RecordNode::open(child, std::move(*log)));
  const auto written = bench.write(*node, 0, "data");
  REQUIRE(!written.has_value());
  CHECK(written.error()->kind == ErrorKind::Io);
  CHECK(bench.read(*node, 0, 4) == "data");
  CHECK(!bench.reactor->wait(node->close()).has_value());
}

TEST_CASE("record: a long write is logged in pieces of a bounded size") {
  FileBench bench;
  const std::string path = bench.dir.file("image", 4 << 20), log = bench.dir.file("log");
  auto node = recording(bench, bench.open({.path = path}), log);
  std::string text(3 << 20, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + (i >> 12));
  CHECK(bench.write(*node, 12345, text, true).has_value());
  CHECK(bench.reactor->wait(node->close()).has_value());
  const Recorded recorded = read_log(log);
  for (const auto& [entry, content] : recorded.entries) {
    CHECK(entry.content() <= BouncePool::kBufferBytes);
    if (entry.type == EntryType::Submit) CHECK(entry.fua);
  }
  const auto file = content_of(path);
  CHECK(test::rebuild(recorded).bytes == test::bytes_of({file.begin(), file.end()}));
}

TEST_CASE("record: a log whose base cannot be read is not one that ended in order") {
  FileBench bench;
  const std::string path = bench.dir.file("image", 4096), log = bench.dir.file("log");
  auto child = bench.open({.path = path});
  CHECK(bench.write(*child, 0, "data").has_value());
  auto faulty = std::make_shared<FaultNode>(child, *parse_fault_rules("read:1:EIO"));
  CHECK(!bench.reactor->wait(RecordNode::open(faulty, log)).has_value());
  CHECK(read_log(log).end == LogEnd::Cut);
}

TEST_CASE("record: the image itself is no log, though its guest has made it look like one") {
  FileBench bench;
  const std::string path = small_log(bench), link = bench.dir.file("link");
  std::filesystem::create_symlink(path, link);
  std::filesystem::resize_file(path, 8192);
  const auto before = content_of(path);
  FormatRegistry registry;
  registry.add({.name = "raw", .open = [](std::shared_ptr<Node> child, OpenOptions) {
                  return finished(Result<std::shared_ptr<Node>>(std::move(child)));
                }});
  DiskSpec spec{.file = path, .locking = LockPolicy::Off, .record = link};
  std::vector<std::string> warnings;
  auto opened = bench.reactor->wait(open_graph(*bench.reactor, spec, registry, warnings));
  REQUIRE(!opened.has_value());
  CHECK(opened.error()->message().find("the image itself") != std::string::npos);
  CHECK(content_of(path) == before);
}

TEST_CASE("record: a log cut anywhere gives the entries before the cut") {
  FileBench bench;
  const std::string path = small_log(bench), cut = bench.dir.file("cut.log");
  const auto whole = read_log(path);
  const auto bytes = content_of(path);
  std::size_t last = 0;
  for (std::size_t length = kHeaderBytes; length < bytes.size(); ++length) {
    put_content(cut, {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)});
    const auto part = read_log(cut);
    CHECK(part.end == LogEnd::Cut);
    REQUIRE(part.entries.size() >= last);
    REQUIRE(part.entries.size() < whole.entries.size());
    last = part.entries.size();
    for (std::size_t i = 0; i < last; ++i) CHECK(part.entries[i].second == whole.entries[i].second);
  }
  CHECK(last == whole.entries.size() - 1);
}

TEST_CASE("record: a changed byte ends the log there") {
  FileBench bench;
  const std::string path = small_log(bench), changed = bench.dir.file("changed.log");
  const auto whole = read_log(path);
  auto bytes = content_of(path);
  std::size_t begin = kHeaderBytes;
  for (std::size_t number = 0; number < whole.entries.size(); ++number) {
    const std::size_t covered = kEntryBytes + whole.entries[number].second.size();  // padding says nothing
    for (std::size_t i = begin; i < begin + covered; ++i) {
      CAPTURE(i);
      bytes[i] = static_cast<char>(bytes[i] ^ 0x20);
      put_content(changed, bytes);
      bytes[i] = static_cast<char>(bytes[i] ^ 0x20);
      const auto part = read_log(changed);
      CHECK(part.end == LogEnd::Cut);
      CHECK(part.entries.size() == number);
    }
    begin += (covered + kPadding - 1) / kPadding * kPadding;
  }
  CHECK(begin == bytes.size());
}

TEST_CASE("record: what is no log is neither replaced nor read, and a log has one writer") {
  FileBench bench;
  const std::string text = bench.dir.file("letter.txt");
  put_content(text, {'D', 'e', 'a', 'r'});
  const std::string newer = bench.dir.file("newer.log");
  auto other = content_of(small_log(bench));
  other[8] = 2;  // of a version that nobody knows here
  put_content(newer, other);
  auto file = bench.open({.path = bench.dir.file("image", 4096)});
  const auto refused = [&](const std::string& path, ErrorKind kind) {
    auto node = bench.reactor->wait(RecordNode::open(file, path));
    REQUIRE(!node.has_value());
    CHECK_MESSAGE(node.error()->kind == kind, node.error()->message());
    CHECK(node.error()->message().find(path) != std::string::npos);
  };
  refused(text, ErrorKind::Invalid);
  CHECK(content_of(text) == std::vector<char>{'D', 'e', 'a', 'r'});
  refused(newer, ErrorKind::Invalid);
  CHECK(content_of(newer) == other);
  refused("/dev/full", ErrorKind::Invalid);
  refused(bench.dir.path(), ErrorKind::Io);  // EISDIR
  refused(bench.dir.file("nowhere/log"), ErrorKind::NotFound);
  const std::string log = small_log(bench);
  auto node = recording(bench, file, log);
  refused(log, ErrorKind::InUse);
  CHECK(bench.reactor->wait(node->close()).has_value());
  CHECK(read_log(log).entries.size() == 1);
  auto reading = LogReader::open(text);
  REQUIRE(!reading.has_value());
  CHECK(reading.error()->kind == ErrorKind::Invalid);
}

}  // namespace
}  // namespace spindle::record
