// What a trace shows of virtio-blk requests: from the doorbell to the interrupt.
#include <doctest/doctest.h>

#include "block/test_support/environment.h"
#include "block/test_support/trace_file.h"
#include "block/trace/tracer.h"
#include "devices/virtio/blk_test_rig.h"

namespace spindle::virtio {
namespace {

using test::Op;
using test::TestRequest;
using Rig = test::BlkRig;

TEST_CASE("a traced request goes from the doorbell over the disk to the interrupt") {
  const spindle::test::TempDir directory;
  const std::string file = directory.file("trace.json");
  Rig rig;
  TestRequest request(rig.ram, 4096);
  trace::Tracer tracer({});
  REQUIRE(tracer.start(file));
  CHECK(rig.run(request, kBlkTypeOut, 8) == kBlkStatusOk);
  CHECK(rig.run(request, kBlkTypeGetId, 0) == kBlkStatusOk);
  rig.node->fail(Op::Read);
  CHECK(rig.run(request, kBlkTypeIn, 8) == kBlkStatusIoError);
  REQUIRE(tracer.stop());
  CHECK(rig.run(request, kBlkTypeOut, 8) == kBlkStatusOk);  // and on without
  const auto trace = spindle::test::read_trace(file);
  std::string read_outcome, write_why;
  for (const auto& event : trace) {
    const std::string phase = event.at("ph"), name = event.at("name");
    if (phase == "e" && name == "virtio read") read_outcome = event.at("args").at("outcome");
    if (phase == "e" && name == "virtio write") write_why = event.at("args").at("why");
    if (phase == "b" && name == "virtio write") CHECK(event.at("args").at("offset") == 4096);
  }
  const auto ways = spindle::test::ways_in(trace);
  REQUIRE(ways.size() == 3);
  const std::vector<std::string> write = {"b virtio write", "b queued",     "e queued",
                                          "b disk write",   "e disk write", "e virtio write"};
  CHECK(std::ranges::any_of(ways, [&](const auto& each) { return each.second == write; }));
  CHECK(read_outcome == "IOERR");
  CHECK((write_why == "interrupt" || write_why == "the driver wants no interrupt"));
}

}  // namespace
}  // namespace spindle::virtio
