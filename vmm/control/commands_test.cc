// The control protocol, over a machine that is only pretended.
#include "vmm/control/commands.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace spindle::vmm {
namespace {

using Json = nlohmann::ordered_json;

struct Pretended final : ControlTarget {
  bool runs = true;
  bool writeback = true;
  std::string asked;  // the last thing done to it
  bool ending = false;
  ThrottleLimits throttling;

  Result<> done(std::string what) {
    if (ending) return std::unexpected(Error{.operation = "control", .detail = "the machine is ending"});
    asked = std::move(what);
    return {};
  }
  Result<RunState> run_state() override { return runs ? RunState::Running : RunState::Paused; }
  Result<> stop() override {
    runs = false;
    return done("stop");
  }
  Result<> cont() override {
    runs = true;
    return done("cont");
  }
  Result<> system_reset() override { return done("system_reset"); }
  Result<> quit() override { return done("quit"); }
  Result<Json> disks() override {
    Json counters;
    for (const char* name :
         {"read_bytes", "write_bytes", "read_ops", "write_ops", "flush_requests", "discard_ops"})
      counters[name] = 5;
    return Json::array({{{"id", "virtio0"},
                         {"file", "a,b.img"},
                         {"format", "raw"},
                         {"bus", "virtio"},
                         {"size", 1 << 20},
                         {"read_only", false},
                         {"cache", "none"},
                         {"write_cache", writeback},
                         {"io_status", "nospace"},
                         {"throttling", {{"bps", 0}, {"iops", 100}, {"iops_max", 200}}},
                         {"counters", counters},
                         {"protocol", {{"fdatasyncs", 2}}}},
                        {{"id", "cd0"},
                         {"bus", "ide"},
                         {"tray", {{"open", true}, {"locked", false}}},
                         {"cache", "writeback"},
                         {"io_status", "ok"},
                         {"counters", counters},
                         {"protocol", {{"fdatasyncs", 0}}}}});
  }
  Result<> set_write_cache(const std::string& disk, bool on) override {
    if (disk != "virtio0")
      return std::unexpected(Error{.kind = ErrorKind::NotFound, .operation = "write cache", .node = disk});
    writeback = on;
    return done("set_write_cache");
  }
  Result<> set_throttle(const std::string& disk, const ThrottleLimits& limits) override {
    if (disk != "virtio0")
      return std::unexpected(Error{.kind = ErrorKind::NotFound, .operation = "throttle", .node = disk});
    throttling = limits;
    return done("set_throttle");
  }
  Result<> resize(const std::string& disk, uint64_t bytes) override {
    if (disk != "virtio0")
      return std::unexpected(Error{.kind = ErrorKind::NotFound, .operation = "resize", .node = disk});
    return done(fmt::format("resize to {}", bytes));
  }
  Result<> tray(const std::string& drive, const std::string& what, bool force) {
    if (drive != "cd0")
      return std::unexpected(Error{.kind = ErrorKind::NotFound, .operation = what, .node = drive});
    return done(what + (force ? " by force" : ""));
  }
  Result<> open_tray(const std::string& drive, bool force) override { return tray(drive, "open", force); }
  Result<> close_tray(const std::string& drive) override { return tray(drive, "close", false); }
  Result<> eject(const std::string& drive, bool force) override { return tray(drive, "eject", force); }
  Result<> change_medium(const std::string& drive, const std::string& file, const std::string& format,
                         bool force) override {
    if (file == "absent") return std::unexpected(Error::from_errno(ENOENT, "open", file));
    return tray(drive, fmt::format("change to {} {}", file, format), force);
  }
  Result<> system_powerdown() override { return done("system_powerdown"); }
  Result<> start_trace(const std::string& file) override { return done("trace to " + file); }
  Result<> stop_trace() override { return done("stop_trace"); }
  Result<trace::Tracer::Status> trace_status() override {
    return trace::Tracer::Status{.recording = true, .file = "t.json", .events = 7, .lost = 1};
  }
};

Json ask(Pretended& target, std::string_view line) {
  const std::string answer = answer_request(line, target);
  REQUIRE(!answer.empty());
  REQUIRE(answer.find('\n') == answer.size() - 1);  // one line
  return Json::parse(answer);
}

std::string error_of(const Json& answer) {
  CHECK(!answer.contains("return"));
  return answer.at("error").at("desc");
}

}  // namespace

TEST_CASE("control: status, stop and cont") {
  Pretended target;
  CHECK(ask(target, R"({"execute": "query-status"})") ==
        Json::parse(R"({"return": {"status": "running", "running": true}})"));
  CHECK(ask(target, R"({"execute": "stop", "id": [1, "x"]})") ==
        Json::parse(R"({"return": {}, "id": [1, "x"]})"));
  CHECK(ask(target, R"({"execute": "query-status"})").at("return").at("status") == "paused");
  CHECK(ask(target, R"({"execute": "cont", "arguments": {}})").at("return") == Json::object());
  CHECK(target.runs);
  for (const char* command : {"quit", "system_reset", "system_powerdown"}) {
    ask(target, fmt::format(R"({{"execute": "{}"}})", command));
    CHECK(target.asked == command);
  }
}

TEST_CASE("control: disks as QMP shows them") {
  Pretended target;
  const Json disk = ask(target, R"({"execute": "query-block"})").at("return").at(0);
  CHECK(disk.at("device") == "virtio0");
  CHECK(disk.at("inserted").at("cache") ==
        Json::parse(R"({"writeback": true, "direct": true, "no-flush": false})"));
  CHECK(disk.at("inserted").at("image").at("virtual-size") == 1 << 20);
  CHECK(disk.at("io-status") == "nospace");
  const Json stats = ask(target, R"({"execute": "query-blockstats"})").at("return").at(0);
  CHECK(stats.at("stats").at("flush_operations") == 5);
  CHECK(stats.at("protocol").at("fdatasyncs") == 2);

  ask(target,
      R"({"execute": "block_set_write_cache", "arguments": {"device": "virtio0", "writeback": false}})");
  CHECK(!target.writeback);
  const Json answer =
      ask(target, R"({"execute": "block_set_write_cache", "arguments": {"device": "x", "writeback": true}})");
  CHECK(answer.at("error").at("class") == "DeviceNotFound");
  CHECK(!target.writeback);
}

TEST_CASE("control: an empty drive, and what is done to its tray and medium") {
  Pretended target;
  const Json listed = ask(target, R"({"execute": "query-block"})").at("return");
  CHECK(listed.at(0).at("removable") == false);
  CHECK(!listed.at(0).contains("tray_open"));
  CHECK(listed.at(1) ==
        Json::parse(R"({"device": "cd0", "type": "cdrom", "removable": true, "locked": false,)"
                    R"( "tray_open": true, "bus": "ide", "io-status": "ok"})"));
  CHECK(ask(target, R"({"execute": "query-blockstats"})").at("return").at(1).at("device") == "cd0");

  const auto done = [&](std::string_view command, std::string_view arguments) {
    target.asked.clear();
    const Json answer =
        ask(target, fmt::format(R"({{"execute": "{}", "arguments": {{{}}}}})", command, arguments));
    return answer.contains("return") ? target.asked : error_of(answer);
  };
  CHECK(done("eject", R"("device": "cd0")") == "eject");
  CHECK(done("eject", R"("id": "cd0", "force": true)") == "eject by force");
  CHECK(done("blockdev-open-tray", R"("id": "cd0", "force": false)") == "open");
  CHECK(done("blockdev-close-tray", R"("device": "cd0")") == "close");
  CHECK(done("blockdev-change-medium", R"("device": "cd0", "filename": "a.iso")") == "change to a.iso raw");
  CHECK(done("blockdev-change-medium", R"("id": "cd0", "filename": "a", "format": "f", "force": true,)"
                                       R"( "read-only-mode": "retain")") == "change to a f by force");
  CHECK(done("blockdev-change-medium", R"("id": "cd0", "filename": "a", "read-only-mode": "read-only")") ==
        "change to a raw");

  for (const char* command : {"eject", "blockdev-open-tray", "blockdev-close-tray"}) {
    CHECK(done(command, "") == "Need exactly one of 'device' and 'id'");
    CHECK(done(command, R"("id": "cd0", "device": "cd0")") == "Need exactly one of 'device' and 'id'");
  }
  CHECK(done("eject", R"("id": "cd0", "force": 1)").find("boolean") != std::string::npos);
  CHECK(done("blockdev-close-tray", R"("id": "cd0", "force": true)").find("unexpected") != std::string::npos);
  CHECK(done("blockdev-change-medium", R"("id": "cd0")") == "Parameter 'filename' is missing");
  const std::string change = R"("id": "cd0", "filename": "a", "read-only-mode": )";
  CHECK(done("blockdev-change-medium", change + R"("read-write")").find("CD-ROM") != std::string::npos);
  CHECK(done("blockdev-change-medium", change + R"("maybe")").find("retain") != std::string::npos);
  CHECK(target.asked.empty());

  // A drive that is not there, and a file that is not.
  const auto error_class = [&](std::string_view device, std::string_view file) {
    return ask(target, fmt::format(R"({{"execute": "blockdev-change-medium", "arguments": {{"device": "{}", )"
                                   R"("filename": "{}"}}}})",
                                   device, file))
        .at("error")
        .at("class");
  };
  CHECK(error_class("virtio7", "a") == "DeviceNotFound");
  CHECK(error_class("cd0", "absent") == "GenericError");
}

TEST_CASE("control: a size is a number of bytes and nothing else") {
  Pretended target;
  const auto resize = [&](std::string_view size) {
    target.asked.clear();
    return ask(
        target,
        fmt::format(R"({{"execute": "block_resize", "arguments": {{"device": "virtio0", "size": {}}}}})",
                    size));
  };
  CHECK(resize("18446744073709551615").at("return") == Json::object());
  CHECK(target.asked == "resize to 18446744073709551615");
  for (const char* wrong : {"-1", "1.5", "1e3", "18446744073709551616", "\"2G\"", "true", "null", "[1]"}) {
    CHECK(error_of(resize(wrong)) == "Invalid parameter type for 'size', expected: integer, 0 or more");
    CHECK(target.asked.empty());
  }
}

TEST_CASE("control: throttling takes all of QMP's numbers, and says which do not go together") {
  Pretended target;
  const auto throttle = [&](std::string_view more, std::string_view device = "virtio0") {
    return ask(target, fmt::format(R"({{"execute": "block_set_io_throttle", "arguments": {{"device": "{}", )"
                                   R"("bps": 0, "bps_rd": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0{}}}}})",
                                   device, more));
  };
  CHECK(error_of(throttle("")) == "Parameter 'bps_wr' is missing");
  CHECK(error_of(throttle(R"(, "bps_wr": -1)")) ==
        "Invalid parameter type for 'bps_wr', expected: integer, 0 or more");
  CHECK(error_of(throttle(R"(, "bps_wr": 0, "iops_max": 5)")).find("iops_max needs iops as well") !=
        std::string::npos);
  CHECK(error_of(throttle(R"(, "bps_wr": 1000000000000001)")).find("bps_wr=") != std::string::npos);
  CHECK(target.asked.empty());
  CHECK(throttle(R"(, "bps_wr": 5)", "x").at("error").at("class") == "DeviceNotFound");

  // Each of them arrives where it belongs.
  ThrottleLimits expected;
  uint64_t value = 100;
  Json arguments{{"device", "virtio0"}};
  for (const ThrottleField& field : throttle_fields(expected, ThrottleSpelling::Qmp)) {
    const bool total = field.name.starts_with("bps_max") || field.name.starts_with("iops_max") ||
                       field.name == "bps" || field.name == "iops";
    if (!total) *field.value = value++;
    arguments[field.name] = *field.value;
  }
  const Json answer =
      ask(target, Json{{"execute", "block_set_io_throttle"}, {"arguments", arguments}}.dump());
  CHECK_MESSAGE(answer.contains("return"), answer.dump());
  CHECK(target.throttling == expected);

  const Json shown = ask(target, R"({"execute": "query-block"})").at("return").at(0).at("inserted");
  CHECK(shown.at("iops") == 100);
  CHECK(shown.at("iops_max") == 200);
  CHECK(!shown.contains("bps_max"));
}

TEST_CASE("control: every command that is listed exists, and no other") {
  Pretended target;
  const Json listed = ask(target, R"({"execute": "query-commands"})");
  for (const Json& command : listed.at("return")) {
    const Json answer = ask(target, Json{{"execute", command.at("name")}}.dump());
    if (answer.contains("error")) CHECK(answer.at("error").at("class") != "CommandNotFound");
  }
  const Json answer = ask(target, R"({"execute": "query-statu", "id": 7})");
  CHECK(answer.at("error").at("class") == "CommandNotFound");
  CHECK(answer.at("id") == 7);
}

TEST_CASE("control: what is nested deeply is refused wherever it is, and quoted brackets nest nothing") {
  Pretended target;
  const auto nested = [](unsigned levels, std::string_view open, std::string_view close) {
    std::string text;
    for (unsigned i = 0; i < levels; ++i) text += open;
    text += '1';
    for (unsigned i = 0; i < levels; ++i) text += close;
    return text;
  };
  for (const auto& [open, close] : {std::pair{"[", "]"}, std::pair{R"({"a":)", "}"}}) {
    for (const char* place :
         {R"({{"execute": "stop", "id": {}}})", R"({{"execute": "stop", "arguments": {}}})",
          R"({{"execute": "stop", "arguments": {{"device": {}}}}})", "{}"}) {
      const std::string line = fmt::format(fmt::runtime(place), nested(9000, open, close));
      CHECK(error_of(ask(target, line)) == "JSON nested deeper than 1024 levels");
    }
    CHECK(error_of(ask(target, nested(9000, open, ""))) == "JSON nested deeper than 1024 levels");
  }
  CHECK(target.asked.empty());
  const std::string ids[] = {nested(1023, "[", "]"), '"' + nested(2000, "[", "") + '"',
                             R"("\")" + nested(2000, "{", "") + '"', R"(["\\"])"};
  for (const std::string& id : ids) {
    const std::string line = fmt::format(R"({{"execute": "stop", "id": {}}})", id);
    CHECK(ask(target, line).at("return") == Json::object());
  }
}

TEST_CASE("control: what is wrong with a request is said, and nothing is done") {
  Pretended target;
  CHECK(error_of(ask(target, "stop")) == "JSON parse error");
  CHECK(error_of(ask(target, R"({"execute": "stop")")) == "JSON parse error");
  CHECK(error_of(ask(target, "\"\xff\"")) == "JSON parse error");
  CHECK(error_of(ask(target, "[]")).find("object") != std::string::npos);
  CHECK(error_of(ask(target, "{}")).find("execute") != std::string::npos);
  CHECK(error_of(ask(target, R"({"execute": 3})")).find("string") != std::string::npos);
  CHECK(error_of(ask(target, R"({"execute": "stop", "argument": {}})")).find("argument") !=
        std::string::npos);
  CHECK(error_of(ask(target, R"({"execute": "stop", "arguments": []})")).find("object") != std::string::npos);
  CHECK(error_of(ask(target, R"({"execute": "stop", "arguments": {"now": true}})")).find("now") !=
        std::string::npos);
  const std::string toggle = R"({"execute": "block_set_write_cache", "arguments": )";
  CHECK(error_of(ask(target, toggle + R"({"device": "virtio0"}})")) == "Parameter 'writeback' is missing");
  CHECK(error_of(ask(target, toggle + R"({"device": "virtio0", "writeback": "off"}})")).find("boolean") !=
        std::string::npos);
  CHECK(error_of(ask(target, toggle + R"({"device": null, "writeback": true}})")).find("string") !=
        std::string::npos);
  CHECK(target.asked.empty());

  target.ending = true;
  CHECK(error_of(ask(target, R"({"execute": "stop"})")).find("ending") != std::string::npos);
}

}  // namespace spindle::vmm
