// CD-ROM drives whose media change, from the description of a disk to the registers that a guest reads,
// without KVM: the test is the guest.
#include <doctest/doctest.h>

#include <array>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "block/test_support/environment.h"
#include "formats/register_formats.h"
#include "vmm/disk_set.h"
#include "vmm/layout.h"

namespace spindle::vmm {
namespace {

using ide::Sense;

constexpr uint32_t kBlock = ide::kDiscBlockBytes;

struct NoLine final : legacy::SerialLine {
  bool transmit(uint8_t) override { return true; }
  void input_taken() override {}
};

/// Disks as `--disk` describes them, of which the drive on bus 1 unit 0 is the guest's.
struct Fixture {
  spindle::test::TempDir directory;
  FormatRegistry registry;
  std::vector<uint8_t> ram = std::vector<uint8_t>(1 << 20);
  GuestMemory memory{{{.guest_address = 0, .size = ram.size(), .host = ram.data()}}};
  IoSpace ports, memory_space;
  NoLine line;
  Chipset chipset{ports, line, [](unsigned, bool) {},
                  MachineRequests{.reset = [] {}, .power_off = [] {}, .panicked = [] {}}};
  std::unique_ptr<DiskSet> disks;
  PciBus bus{ports, memory_space, chipset.pci_pins()};  // which lets go of their functions first
  std::vector<std::string> warnings;
  std::promise<std::string> stopped;

  Fixture() { register_formats(registry); }
  ~Fixture() {
    if (disks) CHECK(disks->close().empty());
  }

  /// A medium whose block n is full of the byte first + n.
  std::string iso(const std::string& name, uint8_t first, unsigned blocks = 8) const {
    std::ofstream file(directory.file(name), std::ios::binary);
    for (unsigned i = 0; i < blocks; ++i) file << std::string(kBlock, static_cast<char>(first + i));
    return directory.file(name);
  }
  void start(const std::vector<std::string>& options) {
    std::vector<DiskSpec> specs;
    for (const std::string& text : options) {
      auto spec = parse_disk_spec(text, registry);
      if (!spec) FAIL(spec.error()->message());
      specs.push_back(std::move(*spec));
    }
    auto opened = DiskSet::open(specs, registry, warnings);
    if (!opened) FAIL(opened.error()->message());
    disks = std::move(*opened);
    disks->set_stop_handler([this](std::string error) { stopped.set_value(std::move(error)); });
    REQUIRE(disks->plug(
        {.memory = memory, .bus = bus, .chipset = chipset, .ports = ports, .fault = [](const Error& error) {
           FAIL(error.message());
         }}));
  }
  nlohmann::ordered_json drive() { return disks->statistics().at(0); }
  std::string change(const std::string& file, bool force = false, const std::string& format = "raw") {
    const auto changed = disks->change_medium("cd", file, format, force, warnings);
    return changed ? "" : changed.error()->message();
  }

  // ---- the guest ----
  uint8_t in(uint64_t port) const {
    uint8_t value = 0;
    ports.read(port, std::span(&value, 1), 1);
    return value;
  }
  void out(uint64_t port, uint8_t value) const { ports.write(port, std::span(&value, 1), 1); }
  uint64_t command_block() const { return kPortIdeCommand[1]; }
  uint8_t wait_not_busy() const {
    uint8_t status;
    while ((status = in(kPortIdeControl[1])) & ide::kBsy) std::this_thread::yield();
    return status;
  }
  void begin(std::array<uint8_t, ide::kCdbBytes> cdb) const {
    out(command_block() + ide::kDevice, 0);
    out(command_block() + ide::kFeatures, 0);
    out(command_block() + ide::kLbaMid, 0);
    out(command_block() + ide::kLbaHigh, kBlock >> 8);
    out(command_block() + ide::kCommand, 0xa0);
    REQUIRE((wait_not_busy() & ide::kDrq) != 0);
    ports.write(command_block(), cdb, 2);
  }
  /// True if the command ended well.
  bool finish(std::vector<uint8_t>& data) const {
    data.clear();
    uint8_t status;
    while ((status = wait_not_busy()) & ide::kDrq) {
      std::vector<uint8_t> block(in(command_block() + ide::kLbaMid) | in(command_block() + ide::kLbaHigh)
                                                                          << 8);
      ports.read(command_block(), block, 2);
      data.insert(data.end(), block.begin(), block.end());
    }
    return !(status & ide::kErr);
  }
  bool run(std::array<uint8_t, ide::kCdbBytes> cdb) const {
    std::vector<uint8_t> data;
    begin(cdb);
    return finish(data);
  }
  Sense sense() const {
    std::vector<uint8_t> data;
    begin({ide::kRequestSense, 0, 0, 0, 18});
    REQUIRE(finish(data));
    return {.key = data.at(2), .code = data.at(12), .qualifier = data.at(13)};
  }
  static std::array<uint8_t, ide::kCdbBytes> read_block(uint8_t block) {
    return {ide::kRead10, 0, 0, 0, 0, block, 0, 0, 1};
  }
  /// What block 1 of the medium is full of; -1 if it cannot be read.
  int second_block() const {
    std::vector<uint8_t> data;
    begin(read_block(1));
    return finish(data) ? data.at(0) : -1;
  }
};

constexpr const char* kEmptyDrive = "if=ide,bus=1,unit=0,media=cdrom,id=cd";

bool says(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos && message.find('\n') == std::string::npos;
}
bool says(const Result<>& result, std::string_view part) {
  return !result && says(result.error()->message(), part);
}

}  // namespace

TEST_CASE_FIXTURE(Fixture, "media: an empty drive says so, refuses what needs a medium, and takes one") {
  start({kEmptyDrive});
  CHECK(!drive().contains("file"));
  CHECK(drive().at("tray") == nlohmann::ordered_json{{"open", false}, {"locked", false}});
  CHECK(drive().at("counters").at("read_ops") == 0);
  CHECK(drive().at("flushes_balance") == true);
  CHECK(says(disks->resize("cd", 1 << 20), "there is no medium"));
  CHECK(says(disks->set_throttle("cd", {}), "there is no medium"));
  CHECK(says(disks->set_write_cache("cd", false), "no write cache"));
  CHECK(disks->settle().empty());
  disks->quiesce();
  disks->retry_held();
  disks->resume();
  CHECK(!run({ide::kTestUnitReady}));
  CHECK(sense() == ide::kMediumNotPresentTrayClosed);

  CHECK(change(iso("a.iso", 10)) == "");
  CHECK(drive().at("file") == directory.file("a.iso"));
  CHECK(drive().at("read_only") == true);
  CHECK(second_block() == -1);
  CHECK(sense() == ide::kMediumMayHaveChanged);
  CHECK(second_block() == 11);
}

TEST_CASE_FIXTURE(Fixture,
                  "media: another medium, from the same directory or the same file, is read at once") {
  start({"file=" + iso("a.iso", 10) + "," + kEmptyDrive});
  CHECK(second_block() == 11);
  CHECK(change(iso("b.iso", 100)) == "");
  CHECK(!run({ide::kTestUnitReady}));
  CHECK(second_block() == 101);
  CHECK(change(directory.file("b.iso")) == "");  // which lies in the drive: any number may read
  CHECK(!run({ide::kTestUnitReady}));
  CHECK(second_block() == 101);
  CHECK(drive().at("counters").at("read_ops") == 3);  // of the drive, not of the medium
  CHECK(drive().at("counters").at("read_bytes") == 3 * kBlock);
  CHECK(drive().at("protocol").at("reads") == 3);
  CHECK(disks->eject("cd", false).has_value());
  CHECK(drive().at("counters").at("read_ops") == 3);
  CHECK(drive().at("flushes_balance") == true);
  CHECK(drive().at("tray").at("open") == true);
  CHECK(disks->close_tray("cd").has_value());
  CHECK(drive().at("tray").at("open") == false);
  CHECK(says(disks->resize("cd", 1 << 20), "no medium"));
  CHECK(disks->open_tray("cd", false).has_value());
  CHECK(drive().at("tray").at("open") == true);
}

TEST_CASE_FIXTURE(Fixture, "media: one that cannot be opened leaves the drive as it was") {
  const std::string writable = directory.file("disk.img", 1 << 20);
  start({"file=" + iso("a.iso", 10) + "," + kEmptyDrive, "file=" + writable + ",if=ide,bus=0,unit=0,id=hd"});
  std::ofstream(directory.file("odd.iso")) << "no sector";
  CHECK(says(change(directory.file("missing.iso")), "No such file or directory"));
  CHECK(says(change(directory.file("odd.iso")), "whole sectors of 512"));
  CHECK(says(change(directory.file("a.iso"), false, "vhdx"), "format=vhdx"));
  CHECK(says(change(""), "file= is not possible"));
  CHECK(says(change(std::string("a\0b", 3)), "is not possible"));
  CHECK(says(change("nbd:localhost"), "protocol"));
  CHECK(says(change(directory.path()), directory.path()));
  const std::string in_use = change(writable);
  // Where the file system has no locks there is nothing to refuse.
  if (in_use.empty()) {
    spindle::test::skipped("no image locks here");
    return;
  }
  CHECK(says(in_use, "disk.img"));
  CHECK(drive().at("file") == directory.file("a.iso"));
  CHECK(drive().at("tray").at("open") == false);
  CHECK(second_block() == 11);  // without an attention: nothing has happened
}

TEST_CASE_FIXTURE(Fixture, "media: what is no drive, or not there, has no tray") {
  start({"file=" + directory.file("disk.img", 1 << 20) + ",if=ide,bus=1,unit=0,id=hd"});
  for (const char* id : {"hd", "nothing"}) {
    const char* why = *id == 'h' ? "only CD-ROM drives" : "there is no such disk";
    CHECK(says(disks->eject(id, true), why));
    CHECK(says(disks->open_tray(id, true), why));
    CHECK(says(disks->close_tray(id), why));
    CHECK(says(disks->change_medium(id, "x", "raw", true, warnings), why));
  }
  CHECK(disks->eject("nothing", false).error()->kind == ErrorKind::NotFound);
}

TEST_CASE_FIXTURE(Fixture,
                  "media: a locked one stays, and what was to come is closed again; force changes it") {
  start({"file=" + iso("a.iso", 10) + "," + kEmptyDrive});
  REQUIRE(run({ide::kPreventAllow, 0, 0, 0, 1}));
  CHECK(drive().at("tray").at("locked") == true);
  CHECK(says(disks->eject("cd", false), "locked"));
  CHECK(says(disks->open_tray("cd", false), "locked"));
  CHECK(says(change(iso("b.iso", 100)), "locked"));
  CHECK(drive().at("file") == directory.file("a.iso"));
  CHECK(second_block() == 11);
  CHECK(change(directory.file("b.iso"), true) == "");
  CHECK(drive().at("tray") == nlohmann::ordered_json{{"open", false}, {"locked", false}});
  CHECK(!run({ide::kTestUnitReady}));
  CHECK(sense() == ide::kMediumMayHaveChanged);
  CHECK(second_block() == 101);
}

TEST_CASE_FIXTURE(Fixture, "media: a read that waits after an error ends with its medium") {
  start({"file=" + iso("a.iso", 10) + ",fault=read:1:EIO:always,rerror=stop," + kEmptyDrive});
  begin(read_block(1));
  CHECK(says(stopped.get_future().get(), "disk cd"));
  stopped = {};
  CHECK(disks->eject("cd", false).has_value());
  std::vector<uint8_t> data;
  CHECK(!finish(data));
  CHECK(sense() == ide::kMediumNotPresentTrayOpen);
  // The fault went with the medium; that errors stop the guest is the drive's.
  CHECK(change(iso("b.iso", 100)) == "");
  CHECK(!run({ide::kTestUnitReady}));
  CHECK(second_block() == 101);
}

TEST_CASE_FIXTURE(Fixture, "media: a throttled read is not waited for, and the drive keeps its limits") {
  start({"file=" + iso("a.iso", 10) + ",throttling.bps-total=10," + kEmptyDrive});
  CHECK(second_block() == 11);
  begin(read_block(1));  // in minutes
  CHECK(change(iso("b.iso", 100)) == "");
  std::vector<uint8_t> data;
  CHECK(!finish(data));
  CHECK(sense() == ide::kMediumMayHaveChanged);
  CHECK(drive().at("throttling").at("bps") == 10);
  CHECK(second_block() == 101);
  ThrottleLimits limits;
  limits.rates[static_cast<std::size_t>(ThrottleKind::BpsTotal)].average = 12345;
  CHECK(disks->set_throttle("cd", limits).has_value());
  CHECK(disks->eject("cd", false).has_value());
  CHECK(change(directory.file("a.iso")) == "");
  CHECK(drive().at("throttling").at("bps") == 12345);
}

}  // namespace spindle::vmm
