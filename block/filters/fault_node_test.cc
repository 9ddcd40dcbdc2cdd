#include "block/filters/fault_node.h"

#include <doctest/doctest.h>

#include <cerrno>

#include "block/filters/null_node.h"

namespace spindle {
namespace {

struct Bench {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create());
  std::shared_ptr<NullNode> null = std::make_shared<NullNode>(*reactor, NullNode::Options{.size = 1 << 20});

  std::shared_ptr<FaultNode> node(std::string_view text) {
    auto rules = parse_fault_rules(text);
    REQUIRE_MESSAGE(rules.has_value(), (rules ? "" : rules.error()->message()));
    return std::make_shared<FaultNode>(null, *rules);
  }
  int write(Node& node, uint64_t offset, std::size_t length, bool fua = false) {
    std::string text(length, 'x');
    const iovec part{text.data(), text.size()};
    auto result = reactor->wait(node.write(offset, Buffers(std::span(&part, 1)), {.fua = fua}));
    return result ? 0 : result.error()->number;
  }
  int flush(Node& node) {
    auto result = reactor->wait(node.flush());
    return result ? 0 : result.error()->number;
  }
};

TEST_CASE("fault: the n-th, once") {
  Bench bench;
  auto node = bench.node("flush:2:EIO");
  CHECK(bench.flush(*node) == 0);
  CHECK(bench.flush(*node) == EIO);
  CHECK(bench.flush(*node) == 0);
  CHECK(bench.write(*node, 0, 512) == 0);
}

TEST_CASE("fault: from the n-th on, and only where it touches the range") {
  Bench bench;
  auto node = bench.node("write:@4096+512:2:ENOSPC:always");
  CHECK(bench.write(*node, 4096, 512) == 0);
  CHECK(bench.write(*node, 0, 4096) == 0);
  CHECK(bench.write(*node, 4608, 512) == 0);
  CHECK(bench.write(*node, 0, 4097) == ENOSPC);
  CHECK(bench.write(*node, 4607, 1) == ENOSPC);
  CHECK(bench.write(*node, 4608, 512) == 0);
}

TEST_CASE("fault: fua matches only writes with the flag, write matches both, any matches all") {
  Bench bench;
  auto fua = bench.node("fua:EREMOTEIO");
  CHECK(bench.write(*fua, 0, 512) == 0);
  CHECK(bench.write(*fua, 0, 512, true) == EREMOTEIO);
  auto write = bench.node("write:EIO:always");
  CHECK(bench.write(*write, 0, 512) == EIO);
  CHECK(bench.write(*write, 0, 512, true) == EIO);
  auto any = bench.node("any:3:EIO");
  CHECK(bench.write(*any, 0, 512) == 0);
  CHECK(bench.flush(*any) == 0);
  CHECK(bench.reactor->wait(any->discard(0, 512)).error()->number == EIO);
}

TEST_CASE("fault: several rules, the first that fires is obeyed, all count") {
  Bench bench;
  auto node = bench.node("write:1:EIO;write:2:ENOSPC;write:2:EIO");
  CHECK(bench.write(*node, 0, 512) == EIO);
  CHECK(bench.write(*node, 0, 512) == ENOSPC);
  CHECK(bench.write(*node, 0, 512) == 0);
}

TEST_CASE("fault: held operations go on when released, in their order, and only then reach the child") {
  Bench bench;
  auto inner = std::make_shared<FaultNode>(bench.null, std::vector<FaultRule>{});
  auto node = std::make_shared<FaultNode>(inner, *parse_fault_rules("flush:hold:always"));
  inner->add({.kind = FaultKind::Flush, .number = EIO});  // fails the first that gets there
  std::vector<int> done;
  for (int i = 0; i < 3; ++i) {
    spawn(node->flush(), [&done, i](Result<> result) { done.push_back(result ? i : -i - 1); });
  }
  bench.reactor->wait(node->read(0, {}));
  CHECK(done.empty());
  CHECK(node->held() == 3);
  node->release_all();
  bench.reactor->run_until([&] { return done.size() == 3; });
  CHECK(done == std::vector<int>{-1, 1, 2});
  CHECK(node->held() == 0);
}

TEST_CASE("fault: after lets the child do its part first") {
  Bench bench;
  auto inner = std::make_shared<FaultNode>(bench.null, *parse_fault_rules("write:2:ENOSPC"));
  auto node = std::make_shared<FaultNode>(inner, *parse_fault_rules("write:1:EIO:after"));
  CHECK(bench.write(*node, 0, 512) == EIO);
  CHECK(bench.write(*node, 0, 512) == ENOSPC);  // so the first had been seen below
}

TEST_CASE("fault: a delay passes before the operation") {
  Bench bench;
  auto node = bench.node("flush:delay=20");
  const auto start = std::chrono::steady_clock::now();
  CHECK(bench.flush(*node) == 0);
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(20));
}

TEST_CASE("fault: what is no rule is refused, with the piece that is wrong") {
  for (const char* text : {"",
                           "flush",
                           "frob:EIO",
                           "flush:0:EIO",
                           "flush:EWHAT",
                           "write:@4096:EIO",
                           "write:@4096+0:EIO",
                           "flush:@0+1:EIO",
                           "write:2:99999",
                           "write:-1:EIO",
                           "read:delay=x",
                           "read:delay=99999999",
                           "write:EIO;;read:EIO",
                           "write:EIO:ENOSPC",
                           "write:1:EIO:5",
                           "write:EIO:always:always",
                           "write:hold:hold",
                           "write:EIO:after:after",
                           "write:EIO:@0+1:@2+1",
                           "write:delay=1:delay=2"}) {
    auto rules = parse_fault_rules(text);
    REQUIRE_MESSAGE(!rules.has_value(), text);
    CHECK(rules.error()->kind == ErrorKind::Invalid);
    CHECK(rules.error()->message().find("fault=") != std::string::npos);
    CHECK(rules.error()->message().find('\n') == std::string::npos);
  }
  auto rules = parse_fault_rules("write:2:28");
  REQUIRE(rules.has_value());
  CHECK((*rules)[0].from == 2);
  CHECK((*rules)[0].number == ENOSPC);
}

}  // namespace
}  // namespace spindle
