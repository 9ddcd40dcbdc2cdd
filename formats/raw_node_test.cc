// raw, and opening whole graphs: formats come registered here, so this is where that can be tested.
#include "formats/raw_node.h"

#include <doctest/doctest.h>

#include <cerrno>

#include "block/disk.h"
#include "block/filters/null_node.h"
#include "block/graph.h"
#include "block/protocols/file_node.h"
#include "block/test_support/environment.h"
#include "block/test_support/model_check.h"
#include "formats/register_formats.h"

namespace spindle {
namespace {

using test::ModelCheck;
using test::TempDir;

struct Bench {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create());
  TempDir dir;
  FormatRegistry registry;
  std::vector<std::string> warnings;

  Bench() { register_formats(registry); }

  Result<std::shared_ptr<Node>> open(const std::string& text) {
    auto spec = parse_disk_spec(text, registry);
    if (!spec) return std::unexpected(std::move(spec.error()));
    return reactor->wait(open_graph(*reactor, *spec, registry, warnings));
  }
  std::shared_ptr<Node> opened(const std::string& text) {
    auto node = open(text);
    REQUIRE_MESSAGE(node.has_value(), (node ? "" : node.error()->message()));
    return *node;
  }
  std::string error(const std::string& text) {
    auto node = open(text);
    REQUIRE_MESSAGE(!node.has_value(), text);
    const std::string message = node.error()->message();
    CHECK(message.find('\n') == std::string::npos);
    return message;
  }
  std::string read(Node& from, uint64_t offset, std::size_t length) {
    std::string text(length, '?');
    const iovec part{text.data(), text.size()};
    CHECK(reactor->wait(from.read(offset, Buffers(std::span(&part, 1)))).has_value());
    return text;
  }
  Result<> write(Node& to, uint64_t offset, std::string text) {
    const iovec part{text.data(), text.size()};
    return reactor->wait(to.write(offset, Buffers(std::span(&part, 1)), {}));
  }
};

TEST_CASE("raw: random operations agree with a byte array") {
  Bench bench;
  auto node = bench.opened("file=" + bench.dir.file("image", 300'032));
  ModelCheck(*bench.reactor, *node, {.resize = true}).run();
}

TEST_CASE("raw: the same over every filter and O_DIRECT") {
  Bench bench;
  const std::string path = bench.dir.file("image", 300'032);
  auto node =
      bench.open("file=" + path + ",cache=none,volatile=on,volatile-max=128k,fault=flush:1000000:EIO");
  if (!node) return test::skipped("O_DIRECT: " + node.error()->message());
  ModelCheck check(*bench.reactor, **node, {.seed = 5, .resize = true});
  check.run();
  CHECK(bench.reactor->wait((*node)->flush()).has_value());
  CHECK(bench.reactor->wait((*node)->close()).has_value());
  // The last resize may have left an odd size, which a disk may not have; the file is compared.
  auto file = FileNode::open(*bench.reactor, {.path = path});
  REQUIRE(file.has_value());
  check.check(**file);
}

TEST_CASE("raw: a window touches nothing around it") {
  Bench bench;
  const std::string path = bench.dir.file("image", 64 << 10);
  {
    auto whole = bench.opened("file=" + path);
    CHECK(bench.write(*whole, 0, std::string(64 << 10, '#')).has_value());
    CHECK(bench.reactor->wait(whole->close()).has_value());
  }
  {
    auto window = bench.opened("file=" + path + ",offset=1000,size=10k");
    CHECK(window->size() == 10'240);
    ModelCheck check(*bench.reactor, *window, {.seed = 3});
    check.run();
    CHECK(bench.write(*window, 10'239, "xy").error()->kind == ErrorKind::Invalid);
    CHECK(bench.write(*window, UINT64_MAX - 999, "xy").error()->kind == ErrorKind::Invalid);
    CHECK(bench.reactor->wait(window->resize(512)).error()->kind == ErrorKind::NotSupported);
    CHECK(bench.reactor->wait(window->map(0, 20'000)).error()->kind == ErrorKind::Invalid);
    CHECK(bench.reactor->wait(window->close()).has_value());
  }
  auto whole = bench.opened("file=" + path);
  CHECK(bench.read(*whole, 0, 1000) == std::string(1000, '#'));
  CHECK(bench.read(*whole, 11'240, (64 << 10) - 11'240) == std::string((64 << 10) - 11'240, '#'));
}

TEST_CASE("raw: with an offset alone the window reaches to the end and grows with it") {
  Bench bench;
  auto node = bench.opened("file=" + bench.dir.file("image", 64 << 10) + ",offset=512");
  CHECK(node->size() == (64 << 10) - 512);
  CHECK(bench.reactor->wait(node->resize(1 << 20)).has_value());
  CHECK(node->size() == 1 << 20);
  const Node* raw = node->child();  // under the throttle
  CHECK(raw->child()->size() == (1 << 20) + 512);
  CHECK(bench.reactor->wait(node->resize(UINT64_MAX)).error()->kind == ErrorKind::Invalid);
}

TEST_CASE("raw: a read-only image refuses every change, a fixed window of it too") {
  Bench bench;
  const std::string path = bench.dir.file("image", 64 << 10);
  for (const bool window : {false, true}) {
    auto file = FileNode::open(*bench.reactor, {.path = path, .read_only = true});
    REQUIRE(file.has_value());
    RawNode::Options options;
    if (window) options = {.offset = 4096, .size = 8192};
    auto raw = RawNode::open(*file, options);
    REQUIRE(raw.has_value());
    Node& node = **raw;
    CHECK(node.facts().read_only);
    auto& reactor = *bench.reactor;
    std::string text(512, 'x');
    const iovec part{text.data(), text.size()};
    const Buffers buffers(std::span(&part, 1));
    CHECK(reactor.wait(node.write(0, buffers, {})).error()->kind == ErrorKind::ReadOnly);
    CHECK(reactor.wait(node.write(0, buffers, {.fua = true})).error()->kind == ErrorKind::ReadOnly);
    CHECK(reactor.wait(node.write_zeroes(0, 512, {})).error()->kind == ErrorKind::ReadOnly);
    CHECK(reactor.wait(node.discard(0, 4096)).error()->kind == ErrorKind::ReadOnly);
    CHECK(reactor.wait(node.resize(4096)).error()->kind == ErrorKind::ReadOnly);
  }
}

TEST_CASE("graph: what cannot be opened says what and what to do, and leaves no lock") {
  Bench bench;
  const std::string path = bench.dir.file("image", 1000);
  CHECK(bench.error("file=" + path).find("truncate -s +24 " + path) != std::string::npos);
  CHECK(bench.error("file=" + bench.dir.file("empty", 0)).find("truncate -s") != std::string::npos);
  CHECK(bench.error("file=" + path + ",offset=2000").find("offset=2000") != std::string::npos);
  CHECK(bench.error("file=" + path + ",size=2000").find("size=2000") != std::string::npos);
  CHECK(bench.error("file=" + path + ",size=many").find("size=many") != std::string::npos);
  CHECK(bench.error("file=" + bench.dir.file("missing")).find("no such file") != std::string::npos);
  CHECK(bench.opened("file=" + path + ",size=512")->size() == 512);
}

TEST_CASE("graph: null, filters in their order, elision, warnings") {
  Bench bench;
  auto null = bench.opened("file=null-co://,size=1M");
  CHECK(null->size() == 1 << 20);
  CHECK(bench.warnings.empty());

  const std::string path = bench.dir.file("image", 1 << 20);
  auto node = bench.opened("file=" + path + ",volatile=on,fault=flush:EIO,flush-elision=off,cache=unsafe");
  REQUIRE(bench.warnings.size() == 1);
  CHECK(bench.warnings[0].find("cache=unsafe") != std::string::npos);
  // The injected failure stops above volatile, which therefore never heard of a flush.
  CHECK(bench.write(*node, 0, "data").has_value());
  CHECK(bench.reactor->wait(node->flush()).error()->number == EIO);
  CHECK(protocol_counters_below(*node).writes == 0);
  CHECK(bench.reactor->wait(node->flush()).has_value());
  CHECK(protocol_counters_below(*node).writes == 1);
  CHECK(protocol_counters_below(*node).fdatasyncs == 0);
}

TEST_CASE("graph: a Disk over a failing FUA write stops promising (D6), over a full one it goes on") {
  Bench bench;
  const std::string path = bench.dir.file("image", 1 << 20);
  std::string text(512, 'x');
  const iovec part{text.data(), text.size()};
  for (const bool full : {false, true}) {
    auto node = bench.opened("file=" + path + (full ? ",fault=fua:ENOSPC" : ",fault=fua:EIO"));
    {
      Disk disk(node, {.id = "disk"});
      CHECK(!bench.reactor->wait(disk.write(0, Buffers(std::span(&part, 1)), {.fua = true})).has_value());
      CHECK(bench.reactor->wait(disk.write(0, Buffers(std::span(&part, 1)))).has_value() == full);
      CHECK(bench.reactor->wait(disk.flush()).has_value() == full);
      CHECK(bench.reactor->wait(disk.close()).has_value() == full);
    }
  }
}

}  // namespace
}  // namespace spindle
