// What a trace shows of ATA and packet commands: from the command register to the interrupt.
#include <doctest/doctest.h>

#include <algorithm>

#include "block/test_support/environment.h"
#include "block/test_support/trace_file.h"
#include "block/trace/tracer.h"
#include "devices/ide/packet_driver.h"

namespace spindle::ide::test {
namespace {

using Way = std::vector<std::string>;

class Traced {
 public:
  Traced() {
    if (auto started = tracer_.start(file_); !started) throw std::runtime_error(started.error()->message());
  }
  nlohmann::json stop() {
    if (auto stopped = tracer_.stop(); !stopped) throw std::runtime_error(stopped.error()->message());
    return spindle::test::read_trace(file_);
  }

 private:
  spindle::test::TempDir directory_;
  std::string file_ = directory_.file("trace.json");
  trace::Tracer tracer_{{}};
};

std::size_t count(const nlohmann::json& trace, const Way& way) {
  return static_cast<std::size_t>(std::ranges::count_if(
      spindle::test::ways_in(trace), [&](const auto& each) { return each.second == way; }));
}
std::size_t count_marks(const nlohmann::json& trace, const std::string& name) {
  return static_cast<std::size_t>(std::ranges::count_if(
      trace, [&](const auto& event) { return event.at("ph") == "i" && event.at("name") == name; }));
}

TEST_CASE("trace: a DMA command is one request, each block of a PIO command another") {
  Rig rig;
  HostDriver host = rig.driver();
  Traced traced;
  CHECK(host.dma({.opcode = 0xc8, .count = 8, .lba = 3}, true, 0x20000, 4096).opcode == kReady);
  std::vector<uint8_t> data(2 * kSectorBytes);
  CHECK(host.pio_out({.opcode = 0x30, .count = 2, .lba = 9}, data).opcode == kReady);
  host.identify(0);
  const auto trace = traced.stop();
  CHECK(spindle::test::ways_in(trace).size() == 3);  // IDENTIFY DEVICE needs no disk
  CHECK(count(trace, {"b READ DMA", "b queued", "e queued", "b disk read", "e disk read", "e READ DMA"}) ==
        1);
  CHECK(count(trace, {"b WRITE SECTORS", "b queued", "e queued", "b disk write", "e disk write",
                      "e WRITE SECTORS"}) == 2);
  const auto read = std::ranges::find_if(
      trace, [](const auto& event) { return event.at("ph") == "b" && event.at("name") == "READ DMA"; });
  REQUIRE(read != trace.end());
  CHECK(read->at("args").at("offset") == 3 * kSectorBytes);
  CHECK(read->at("args").at("length") == 4096);
}

TEST_CASE("trace: commands that fail, toggles and resets") {
  Rig rig;
  HostDriver host = rig.driver();
  Traced traced;
  rig.node().fail(Kind::Read, EIO);
  host.dma({.opcode = 0xc8, .count = 1, .lba = 3}, true, 0x20000, kSectorBytes);
  rig.node().fail(Kind::Read, 0);
  CHECK(host.non_data({.opcode = 0xef, .features = kFeatureDisableWriteCache}).opcode == kReady);
  host.soft_reset();
  host.wait_not_busy();
  const auto trace = traced.stop();
  const auto failed = std::ranges::find_if(
      trace, [](const auto& event) { return event.at("ph") == "e" && event.at("name") == "READ DMA"; });
  REQUIRE(failed != trace.end());
  CHECK(failed->at("args").at("outcome") == "ERR");
  CHECK(count_marks(trace, "write cache off") == 1);
  CHECK(count_marks(trace, "channel reset") == 1);
}

TEST_CASE("trace: packet commands that read are requests to the medium") {
  Rig rig({.places = {}, .discs = {0}, .empty_drives = {1}});
  PacketHost cd(rig, 0);
  Traced traced;
  CHECK(cd.pio(PacketHost::read10(30, 3)).good());
  CHECK(cd.dma(PacketHost::read10(30, 2), 2 * kDiscBlockBytes).good());
  CHECK(cd.pio({kTestUnitReady}).good());
  cd.host.soft_reset();
  cd.host.wait_not_busy();
  const auto trace = traced.stop();
  const std::size_t requests = spindle::test::ways_in(trace).size();
  CHECK(requests >= 2);
  CHECK(count(trace, {"b PACKET", "b queued", "e queued", "b disk read", "e disk read", "e PACKET"}) ==
        requests);
  CHECK(count_marks(trace, "channel reset") == 1);  // the empty drive has no disk to show it at
}

}  // namespace
}  // namespace spindle::ide::test
