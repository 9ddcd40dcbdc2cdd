// Traces of disks over a null node, read back as a viewer reads them.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "block/disk.h"
#include "block/filters/fault_node.h"
#include "block/filters/null_node.h"
#include "block/filters/throttle_node.h"
#include "block/filters/trace_node.h"
#include "block/test_support/environment.h"
#include "block/test_support/trace_file.h"
#include "block/trace/chrome_json.h"
#include "block/trace/tracer.h"

namespace spindle::trace {
namespace {

using Json = nlohmann::json;

using test::read_trace;

/// What a viewer relies on: every span ends, what is inside ends first, and time does not go back.
void check_whole(const Json& trace) {
  std::map<std::string, std::vector<std::string>> open;
  std::map<std::string, double> last;
  std::set<int> named;
  for (const Json& event : trace) {
    const std::string phase = event.at("ph");
    if (phase == "M") {
      if (event.at("name") == "process_name") named.insert(event.at("pid").get<int>());
      continue;
    }
    CHECK(named.contains(event.at("pid").get<int>()));
    CHECK(event.at("ts").get<double>() >= 0);
    if (phase != "b" && phase != "e") continue;
    const std::string id = event.at("id");
    CHECK(event.at("ts").get<double>() >= last[id]);
    last[id] = event.at("ts");
    auto& names = open[id];
    if (phase == "b") {
      names.push_back(event.at("name"));
    } else {
      REQUIRE(!names.empty());
      CHECK(names.back() == event.at("name"));
      names.pop_back();
      CHECK(event.at("args").contains("outcome"));
    }
  }
  for (const auto& [id, names] : open) CHECK(names.empty());
}

std::vector<Json> named(const Json& trace, const std::string& phase, const std::string& name) {
  std::vector<Json> found;
  for (const Json& event : trace) {
    if (event.at("ph") == phase && event.at("name") == name) found.push_back(event);
  }
  return found;
}

struct Rig {
  explicit Rig(CacheMode cache = CacheMode::Writeback, ThrottleLimits limits = {},
               std::vector<FaultRule> faults = {}) {
    std::shared_ptr<Node> node = std::make_shared<NullNode>(*reactor, NullNode::Options{});
    node = std::make_shared<TraceNode>(node);
    if (!faults.empty()) node = std::make_shared<FaultNode>(node, faults);
    node = std::make_shared<ThrottleNode>(node, limits);
    disk.emplace(node, DiskOptions{.id = "a\"\\\n\xff", .cache = cache});
  }
  Result<> write(bool fua = false) {
    return reactor->wait([](Rig& rig, bool wants) -> Task<Result<>> {
      co_return co_await rig.disk->write(4096, Buffers(std::span(&rig.part, 1)), {.fua = wants});
    }(*this, fua));
  }
  Json stop() {
    const auto stopped = tracer.stop();
    CHECK(stopped.has_value());
    Json trace = read_trace(file);
    check_whole(trace);
    return trace;
  }

  test::TempDir directory;
  std::string file = directory.file("trace.json");
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create());
  std::optional<Disk> disk;
  Tracer tracer{Tracer::Options{}};
  std::array<uint8_t, 512> memory{};
  iovec part{memory.data(), memory.size()};
};

}  // namespace

TEST_CASE("trace: a request's spans nest, with what they are about and how they ended") {
  Rig rig;
  REQUIRE(rig.tracer.start(rig.file));
  CHECK(rig.write());
  CHECK(rig.reactor->wait(rig.disk->flush()));
  CHECK(rig.reactor->wait(rig.disk->flush()));
  const Json trace = rig.stop();
  const auto writes = named(trace, "b", "disk write");
  REQUIRE(writes.size() == 1);
  CHECK(writes[0].at("args") == Json{{"offset", 4096}, {"length", 512}});
  const auto nodes = named(trace, "b", "node write");
  REQUIRE(nodes.size() == 1);
  CHECK(nodes[0].at("id") == writes[0].at("id"));
  CHECK(named(trace, "e", "disk write")[0].at("args").at("outcome") == "ok");
  const auto flushes = named(trace, "b", "flush"), ends = named(trace, "e", "flush");
  REQUIRE(flushes.size() == 2);
  CHECK(flushes[0].at("args").at("reason") == "guest flush");
  CHECK(ends[0].at("args").at("outcome") == "issued");
  CHECK(ends[1].at("args").at("outcome") == "elided");
  CHECK(ends[1].at("args").at("why") == "nothing changed since the last flush began");
  CHECK(named(trace, "b", "node flush").size() == 1);
  CHECK(named(trace, "b", "node flush")[0].at("id") == flushes[0].at("id"));
  bool disk_named = false;
  for (const Json& event : named(trace, "M", "process_name"))
    disk_named |= event.at("args").at("name") == "disk a\"\\\n?";
  CHECK(disk_named);
}

TEST_CASE("trace: why flushes come, and who toggles the cache") {
  Rig rig;
  REQUIRE(rig.tracer.start(rig.file));
  CHECK(rig.write());
  CHECK(rig.reactor->wait(rig.disk->set_write_cache(false)));
  CHECK(rig.write());
  CHECK(rig.reactor->wait(rig.disk->set_write_cache(true, CacheChooser::Host)));
  CHECK(rig.write(true));
  const Json trace = rig.stop();
  const auto off = named(trace, "i", "write cache off"), on = named(trace, "i", "write cache on");
  REQUIRE(off.size() == 1);
  REQUIRE(on.size() == 1);
  CHECK(off[0].at("args").at("reason") == "guest");
  CHECK(on[0].at("args").at("reason") == "host");
  std::vector<std::string> reasons;
  for (const Json& flush : named(trace, "b", "flush")) reasons.push_back(flush.at("args").at("reason"));
  // The null node knows no FUA, or the write says that it was the node's.
  REQUIRE(reasons.size() >= 2);
  CHECK(reasons[0] == "cache turned off");
  CHECK(reasons[1] == "write-through");
  CHECK((named(trace, "b", "node write, FUA").size() == 1) == (reasons.size() == 2));
  if (reasons.size() == 3) CHECK(reasons[2] == "FUA");
}

TEST_CASE("trace: a throttled request shows its wait, and keeps its name beyond it") {
  ThrottleLimits limits;
  limits.rates[static_cast<std::size_t>(ThrottleKind::BpsWrite)].average = 20 * 512;
  Rig rig(CacheMode::Writeback, limits);
  REQUIRE(rig.tracer.start(rig.file));
  for (int i = 0; i < 4; ++i) CHECK(rig.write());
  const Json trace = rig.stop();
  const auto waits = named(trace, "b", "throttled");
  REQUIRE(!waits.empty());
  std::set<std::string> writes, nodes;
  for (const Json& event : named(trace, "b", "disk write")) writes.insert(event.at("id"));
  for (const Json& event : named(trace, "b", "node write")) nodes.insert(event.at("id"));
  CHECK(writes.contains(waits[0].at("id").get<std::string>()));
  CHECK(nodes == writes);
}

TEST_CASE("trace: the end of a trace under load leaves every span whole") {
  Rig rig;
  std::atomic<bool> done = false;
  std::thread load([&] {
    while (!done) CHECK(rig.write());
  });
  for (int round = 0; round < 10; ++round) {
    REQUIRE(rig.tracer.start(rig.file));
    while (rig.tracer.status().events < 2000) std::this_thread::yield();
    const Json trace = rig.stop();
    CHECK(named(trace, "b", "disk write").size() > 10);
    CHECK_FALSE(on());
  }
  done = true;
  load.join();
}

TEST_CASE("trace: what is in flight at the end ends with it; what began before is not half there") {
  Rig rig;
  const Id before = rig.disk->track().new_request();
  REQUIRE(rig.tracer.start(rig.file));
  end(before, "disk write", "ok");
  const Id request = rig.disk->track().new_request();
  begin_at(1, request, "outer");  // long before the trace
  begin(request, "inner", {512, 512});
  const Json trace = rig.stop();
  CHECK(named(trace, "e", "disk write").empty());
  CHECK(named(trace, "b", "outer")[0].at("ts") == 0);
  CHECK(named(trace, "e", "outer")[0].at("args").at("outcome") == "in flight when the trace ended");
}

TEST_CASE("trace: a full buffer loses what begins, says so, and keeps ends") {
  Rig rig;
  Ring ring(1, "test");
  const auto record = [](Record::Kind kind, Id id) {
    return Record{.time = 10,
                  .request = id,
                  .name = "x",
                  .word = "ok",
                  .why = nullptr,
                  .offset = 0,
                  .length = 0,
                  .kind = kind};
  };
  const Id request = rig.disk->track().new_request();
  for (uint64_t i = 0; i < Ring::kRecords; ++i) ring.push(record(Record::Kind::Begin, request + i));
  CHECK(ring.lost() == Ring::kRecords / 4);
  ring.push(record(Record::Kind::End, request));
  CHECK(ring.lost() == Ring::kRecords / 4);
  ChromeJson json(0, 0);
  ring.drain([&](const Record& each) { json.add(ring, each); });
  json.add_lost(ring, 20, ring.lost());
  CHECK(json.open() == Ring::kRecords / 4 * 3 - 1);
  json.finish(30);
  const Json trace = Json::parse(json.text());
  check_whole(trace);
  CHECK(named(trace, "i", "records lost")[0].at("args").at("count") == Ring::kRecords / 4);
  ring.push(record(Record::Kind::Begin, request));  // there is room again
  CHECK(ring.lost() == Ring::kRecords / 4);
}

TEST_CASE("trace: an end that was lost ends with what it lies in") {
  Rig rig;
  const Ring ring(1, "test");
  ChromeJson json(0, 0);
  const Id request = rig.disk->track().new_request();
  const auto add = [&](Record::Kind kind, const char* name) {
    json.add(ring, Record{.time = 1,
                          .request = request,
                          .name = name,
                          .word = "ok",
                          .why = nullptr,
                          .offset = 0,
                          .length = 0,
                          .kind = kind});
  };
  add(Record::Kind::Begin, "outer");
  add(Record::Kind::Begin, "inner");
  add(Record::Kind::End, "never begun");
  add(Record::Kind::End, "outer");
  CHECK(json.open() == 0);
  json.finish(2);
  const Json trace = Json::parse(json.text());
  check_whole(trace);
  CHECK(named(trace, "e", "inner")[0].at("args").at("outcome") == "unknown");
  CHECK(named(trace, "e", "never begun").empty());
}

TEST_CASE("trace: files that cannot be written, and what is no trace") {
  Rig rig;
  CHECK_FALSE(rig.tracer.stop());
  CHECK_FALSE(rig.tracer.start(rig.directory.file("none/trace.json")));
  CHECK_FALSE(rig.tracer.start(rig.directory.file(".")));
  const std::string precious = rig.directory.file("disk.img");
  for (const char* content : {"data", "[\n {\"precious\": 1}\n]\n", "["}) {
    std::ofstream(precious) << content;
    const auto refused = rig.tracer.start(precious);
    REQUIRE_FALSE(refused);
    CHECK(refused.error()->message().find("no trace") != std::string::npos);
    std::ifstream in(precious);
    CHECK(std::string(std::istreambuf_iterator<char>(in), {}) == content);
  }
  CHECK(rig.tracer.idle());
  CHECK_FALSE(on());
  REQUIRE(rig.tracer.start(rig.file));
  CHECK_FALSE(rig.tracer.start(rig.file));  // one at a time
  CHECK_FALSE(rig.tracer.idle());
  rig.stop();
  CHECK(rig.tracer.idle());
  REQUIRE(rig.tracer.start(rig.file));  // a trace may be replaced
  rig.stop();
}

TEST_CASE("trace: a full disk ends the trace and nothing else") {
  Rig rig;
  std::atomic<int> complaints = 0;
  Tracer tracer(Tracer::Options{.complain = [&complaints](const std::string& line) {
    CHECK(line.find("No space left") != std::string::npos);
    ++complaints;
  }});
  REQUIRE(tracer.start("/dev/full"));
  while (tracer.status().recording) CHECK(rig.write());
  CHECK_FALSE(on());
  CHECK(complaints == 1);
  const auto stopped = tracer.stop();
  REQUIRE_FALSE(stopped);
  CHECK(stopped.error()->kind == ErrorKind::NoSpace);
  REQUIRE(rig.tracer.start(rig.file));  // the next one is not spoilt
  CHECK(rig.write());
  rig.stop();
}

TEST_CASE("trace: off, nothing is handed down or recorded") {
  Rig rig;
  hand_down(5);
  CHECK(taken() == 0);
  CHECK(rig.write());
  REQUIRE(rig.tracer.start(rig.file));
  const Json trace = rig.stop();
  CHECK(named(trace, "b", "disk write").empty());
}

}  // namespace spindle::trace
