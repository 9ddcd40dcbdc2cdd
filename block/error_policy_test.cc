// rerror= and werror=: what a guest is told of the host's errors, and requests that wait and are tried again.
#include "block/error_policy.h"

#include <doctest/doctest.h>

#include <optional>

#include "block/disk.h"
#include "block/filters/fault_node.h"
#include "block/filters/null_node.h"
#include "block/test_support/held_node.h"

namespace spindle {
namespace {

using Slot = std::shared_ptr<std::optional<Result<>>>;

struct Bench {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create(64));
  std::shared_ptr<FaultNode> node;
  Disk disk;
  unsigned stops = 0;
  std::string sector = std::string(512, 'x');
  iovec part{sector.data(), sector.size()};

  Bench(std::string_view faults, ErrorPolicy reads, ErrorPolicy writes,
        CacheMode cache = CacheMode::Writeback)
      : node(std::make_shared<FaultNode>(
            std::make_shared<NullNode>(*reactor, NullNode::Options{.size = 1 << 20}),
            *parse_fault_rules(faults))),
        disk(node,
             {.id = "disk0", .cache = cache, .discard = true, .read_errors = reads, .write_errors = writes}) {
    disk.set_stop_handler([this](const Error&) { ++stops; });
  }
  Slot start(Task<Result<>> task) {
    auto slot = std::make_shared<std::optional<Result<>>>();
    spawn(std::move(task), [slot](Result<> result) { slot->emplace(std::move(result)); });
    test::settle(*reactor);
    return slot;
  }
  Task<Result<>> read() { co_return co_await disk.read(0, Buffers(std::span(&part, 1))); }
  Task<Result<>> write(bool fua = false) {
    return disk.write(0, Buffers(std::span(&part, 1)), WriteFlags{.fua = fua});
  }
  bool drained() {
    auto done = std::make_shared<bool>(false);  // it may end later
    spawn(disk.drain(), [done] { *done = true; });
    test::settle(*reactor);
    return *done;
  }
  void retry() {
    disk.retry_held();
    test::settle(*reactor);
  }
};

bool waits(const Slot& slot) {
  return !slot->has_value();
}
bool succeeded(const Slot& slot) {
  return slot->has_value() && (*slot)->has_value();
}
int failed_with(const Slot& slot) {
  return slot->has_value() && !(*slot)->has_value() ? (*slot)->error()->number : 0;
}

TEST_CASE("which errors a policy covers") {
  const auto action = [](ErrorPolicy policy, ErrorKind kind) {
    return action_for(policy, Error{.kind = kind});
  };
  for (const auto policy :
       {ErrorPolicy::Report, ErrorPolicy::Ignore, ErrorPolicy::Stop, ErrorPolicy::StopIfNoSpace}) {
    for (const auto kind :
         {ErrorKind::Invalid, ErrorKind::ReadOnly, ErrorKind::NotSupported, ErrorKind::FlushFailed}) {
      CHECK(action(policy, kind) == ErrorAction::Report);
    }
  }
  CHECK(action(ErrorPolicy::StopIfNoSpace, ErrorKind::Io) == ErrorAction::Report);
  CHECK(action(ErrorPolicy::StopIfNoSpace, ErrorKind::NoSpace) == ErrorAction::Stop);
  CHECK(action(ErrorPolicy::Stop, ErrorKind::Io) == ErrorAction::Stop);
  CHECK(action(ErrorPolicy::Ignore, ErrorKind::Io) == ErrorAction::Ignore);
}

TEST_CASE("a write waits while there is no space, and is tried again until there is some") {
  Bench bench("write:1:ENOSPC;write:2:ENOSPC", ErrorPolicy::Report, ErrorPolicy::StopIfNoSpace);
  auto write = bench.start(bench.write());
  CHECK(waits(write));
  CHECK(bench.stops == 1);
  CHECK(bench.disk.held() == 1);
  CHECK(bench.disk.io_status() == IoStatus::NoSpace);
  CHECK(bench.drained());  // a stop need not wait for it
  bench.retry();
  CHECK(waits(write));
  CHECK(bench.stops == 2);
  bench.retry();
  CHECK(succeeded(write));
  CHECK(bench.disk.io_status() == IoStatus::Ok);
  CHECK(bench.disk.counters().write_ops.value() == 1);
  CHECK(bench.disk.counters().errors.value() == 2);
}

TEST_CASE("all kinds of requests wait, and end with their errors when the guest is reset or ends") {
  for (const char* kind : {"read", "write", "write_zeroes", "discard"}) {
    CAPTURE(kind);
    Bench bench(std::string(kind) + ":EIO:always", ErrorPolicy::Stop, ErrorPolicy::Stop);
    const auto request = [&] {
      const std::string_view name = kind;
      if (name == "read") return bench.read();
      if (name == "write") return bench.write();
      if (name == "write_zeroes") return bench.disk.write_zeroes(0, 512);
      return bench.disk.discard(0, 512);
    };
    auto first = bench.start(request());
    auto second = bench.start(request());
    CHECK(waits(first));
    CHECK(waits(second));
    CHECK(bench.disk.held() == 2);
    CHECK(bench.disk.io_status() == IoStatus::Failed);
    bench.disk.fail_held();
    CHECK_FALSE(bench.disk.held());
    test::settle(*bench.reactor);
    CHECK(failed_with(first) == EIO);
    CHECK(failed_with(second) == EIO);
    auto third = bench.start(request());
    CHECK(succeeded(bench.start(bench.disk.close())));
    CHECK(failed_with(third) == EIO);
  }
}

TEST_CASE("while the guest is reset or ends nothing comes to wait, however late the error") {
  Bench bench("write:1:EIO;write:2:EIO:hold;write:3:EIO", ErrorPolicy::Report, ErrorPolicy::Stop);
  auto waiting = bench.start(bench.write());
  auto late = bench.start(bench.write());
  CHECK(bench.disk.held() == 1);
  CHECK_FALSE(bench.drained());
  bench.disk.fail_held();
  test::settle(*bench.reactor);
  CHECK(failed_with(waiting) == EIO);
  bench.node->release_all();
  test::settle(*bench.reactor);
  CHECK(failed_with(late) == EIO);
  CHECK(bench.drained());
  CHECK(bench.stops == 1);
  bench.disk.hold_errors();  // the guest that comes after
  auto next = bench.start(bench.write());
  CHECK(bench.disk.held() == 1);
  bench.retry();
  CHECK(succeeded(next));
}

TEST_CASE("D2: a write that was tried again is flushed like any other") {
  Bench bench("write:ENOSPC", ErrorPolicy::Report, ErrorPolicy::Stop, CacheMode::Writethrough);
  auto write = bench.start(bench.write());
  CHECK(bench.disk.counters().flushes_writethrough.value() == 0);
  bench.retry();
  CHECK(succeeded(write));
  CHECK(bench.disk.counters().flushes_writethrough.value() == 1);
}

TEST_CASE("ignored errors are counted, and the guest hears nothing") {
  Bench bench("any:EIO:always", ErrorPolicy::Ignore, ErrorPolicy::Ignore);
  CHECK(succeeded(bench.start(bench.read())));
  CHECK(succeeded(bench.start(bench.write())));
  CHECK(succeeded(bench.start(bench.disk.write_zeroes(0, 512))));
  CHECK(succeeded(bench.start(bench.disk.discard(0, 512))));
  CHECK(bench.stops == 0);
  CHECK(bench.disk.counters().errors.value() == 4);
}

TEST_CASE("D6: no policy covers a flush, nor a write after a failed one") {
  for (const auto policy : {ErrorPolicy::Ignore, ErrorPolicy::Stop}) {
    Bench bench("flush:EIO;write:2:EIO", ErrorPolicy::Report, policy);
    CHECK(succeeded(bench.start(bench.write())));
    auto held = bench.start(bench.write());
    CHECK(waits(held) == (policy == ErrorPolicy::Stop));
    CHECK(failed_with(bench.start(bench.disk.flush())) == EIO);
    CHECK(failed_with(bench.start(bench.write())) == EIO);
    bench.retry();
    if (policy == ErrorPolicy::Stop) CHECK(failed_with(held) == EIO);  // not tried again
    CHECK(bench.disk.held() == 0);
  }
}

TEST_CASE("without anybody to stop the guest it is told") {
  Bench bench("write:EIO", ErrorPolicy::Stop, ErrorPolicy::Stop);
  bench.disk.set_stop_handler(nullptr);
  CHECK(failed_with(bench.start(bench.write())) == EIO);
}

}  // namespace
}  // namespace spindle
