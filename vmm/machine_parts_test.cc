// Parts of the machine that need no KVM: ACPI tables, CPUID tables, the placing of disks, statistics, the
// console.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "block/test_support/environment.h"
#include "vmm/acpi.h"
#include "vmm/boot_cpu.h"
#include "vmm/console.h"
#include "vmm/disk_set.h"
#include "vmm/layout.h"
#include "vmm/open_files.h"
#include "vmm/statistics.h"

namespace spindle::vmm {
namespace {

uint8_t sum(std::span<const uint8_t> bytes) {
  uint8_t total = 0;
  for (uint8_t byte : bytes) total = static_cast<uint8_t>(total + byte);
  return total;
}

template <typename T>
T get(std::span<const uint8_t> bytes, size_t offset) {
  T value;
  REQUIRE(offset + sizeof value <= bytes.size());
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// The table at a guest-physical address, its length and checksum verified.
std::span<const uint8_t> table(const AcpiTables& tables, uint64_t address, const char* signature) {
  const std::span<const uint8_t> all(tables.bytes);
  const size_t at = address - tables.address;
  const auto length = get<uint32_t>(all, at + 4);
  REQUIRE(at + length <= all.size());
  const auto result = all.subspan(at, length);
  CHECK(std::memcmp(result.data(), signature, 4) == 0);
  CHECK(sum(result) == 0);
  return result;
}

}  // namespace

TEST_CASE("acpi: the chain of tables is whole, summed and says what the machine is") {
  for (unsigned cpus : {1u, 3u, kMaxCpus}) {
    const AcpiTables tables = build_acpi_tables(cpus, kAcpiAddress);
    REQUIRE(tables.bytes.size() <= kAcpiEnd - kAcpiAddress);
    const std::span<const uint8_t> rsdp(tables.bytes.data() + (tables.rsdp_address - tables.address), 36);
    CHECK(std::memcmp(rsdp.data(), "RSD PTR ", 8) == 0);
    CHECK(sum(rsdp.first(20)) == 0);
    CHECK(sum(rsdp) == 0);
    const auto xsdt = table(tables, get<uint64_t>(rsdp, 24), "XSDT");
    REQUIRE(xsdt.size() == 36 + 2 * 8);
    const auto fadt = table(tables, get<uint64_t>(xsdt, 36), "FACP");
    CHECK(get<uint16_t>(fadt, 46) == kIrqSci);
    CHECK(get<uint32_t>(fadt, 56) == kPortPm1Event);
    CHECK(get<uint32_t>(fadt, 64) == kPortPm1Control);
    CHECK(get<uint64_t>(fadt, 120) == kPortResetControl);
    const auto facs_address = get<uint32_t>(fadt, 36);
    CHECK(facs_address % 64 == 0);
    CHECK(std::memcmp(tables.bytes.data() + (facs_address - tables.address), "FACS", 4) == 0);
    CHECK(table(tables, get<uint64_t>(fadt, 140), "DSDT").size() == dsdt().size());
    const auto madt = table(tables, get<uint64_t>(xsdt, 44), "APIC");
    unsigned processors = 0;
    for (size_t at = 44; at < madt.size(); at += madt[at + 1]) {
      REQUIRE(madt[at + 1] >= 2);
      if (madt[at] == 0) CHECK(madt[at + 3] == processors++);
    }
    CHECK(processors == cpus);
  }
}

TEST_CASE("cpuid: each processor has its identity, and XSAVE goes with all that needs it") {
  std::vector<kvm_cpuid_entry2> supported(7);
  supported[0].function = 1;
  supported[0].ecx = ~0u;
  supported[1].function = 7;
  supported[1].ebx = ~0u;
  supported[2].function = 0xd;
  supported[2].eax = 7;
  supported[3].function = 0xb;
  supported[3].index = 1;
  supported[4].function = 0x80000008;
  supported[4].eax = 40;
  supported[5].function = 0x80000001;
  supported[5].ecx = ~0u;
  supported[6].function = 0x8000000a;
  supported[6].edx = ~0u;
  CHECK(physical_address_bits(supported) == 40);
  CHECK(physical_address_bits({}) == 36);
  auto cpuid = make_cpuid(supported, {.cpu = 2, .cpus = 3, .tsc_deadline = true});
  CHECK((cpuid[0].ebx >> 24) == 2u);
  CHECK(((cpuid[0].ebx >> 16) & 0xff) == 3);
  CHECK((cpuid[0].edx & 1u << 28) != 0);
  CHECK((cpuid[0].ecx & 1u << 26) != 0);
  CHECK((cpuid[0].ecx & 1u << 5) == 0);  // VMX
  CHECK((cpuid[5].ecx & 1u << 2) == 0);  // SVM
  CHECK((cpuid[5].ecx & 1u << 0) != 0);
  CHECK(cpuid[6].edx == 0);
  CHECK(cpuid[3].edx == 2);
  CHECK(cpuid[3].ebx == 3);
  CHECK(cpuid[3].eax == 2);
  CHECK((cpuid[4].ecx & 0xff) == 2);
  cpuid = make_cpuid(supported, {.hide_xsave = true});
  CHECK((cpuid[0].ecx & (1u << 26 | 1u << 27 | 1u << 28 | 1u << 12)) == 0);
  CHECK((cpuid[1].ebx & (1u << 5 | 1u << 16)) == 0);
  CHECK((cpuid[1].ebx & 1u << 3) != 0);  // BMI1 needs no XSAVE
  CHECK(cpuid[2].eax == 0);
  CHECK((cpuid[0].edx & 1u << 28) == 0);
}

TEST_CASE("disks: places and ids") {
  const DiskSpec ide{.file = "i", .interface = DiskInterface::Ide}, virtio{.file = "v"};
  DiskSpec slave = ide, second_bus = ide;
  slave.bus = 0;
  slave.unit = 0;
  second_bus.bus = 1;
  auto places = place_disks(std::vector{ide, virtio, slave, second_bus, virtio});
  REQUIRE(places);
  CHECK((*places)[0].id == "ide0-hd1");  // the named place was taken first
  CHECK((*places)[1].id == "virtio0");
  CHECK((*places)[2].id == "ide0-hd0");
  CHECK((*places)[3].id == "ide1-hd0");
  CHECK((*places)[4].id == "virtio1");

  const auto refused = [](std::vector<DiskSpec> specs, const char* word) {
    const auto result = place_disks(specs);
    REQUIRE_FALSE(result);
    CHECK(result.error()->message().find(word) != std::string::npos);
    CHECK(result.error()->message().find('\n') == std::string::npos);
  };
  refused({slave, slave}, "unit 0 has a disk already");
  refused({ide, ide, ide, ide, ide}, "no IDE place");
  refused({second_bus, second_bus, second_bus}, "no IDE place");
  refused(std::vector(31, virtio), "30 virtio disks");
  CHECK(place_disks(std::vector(30, virtio)));
  DiskSpec named = virtio;
  named.id = "virtio0";
  refused({named, named}, "id virtio0");
  refused({virtio, named}, "id virtio0");
}

TEST_CASE("open files: the limit is raised as far as it may be, and no disk is made beyond it") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit low{std::min<rlim_t>(before.rlim_max, 300), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  CHECK(make_room_for_open_files(100));
  rlimit after{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &after) == 0);
  CHECK(after.rlim_cur > low.rlim_cur);
  const auto refused = make_room_for_open_files(before.rlim_max == RLIM_INFINITY ? 0 : before.rlim_max);
  CHECK((refused.has_value() || refused.error()->message().find("queues") != std::string::npos));
  CHECK(refused.has_value() == (before.rlim_max == RLIM_INFINITY));
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("statistics: guest pages are told from the monitor's") {
  char name[] = "/tmp/spindle-smaps-XXXXXX";
  close(mkstemp(name));
  std::ofstream(name)
      << "7f0000000000-7f0020000000 rw-s 00000000 00:01 12 /memfd:guest (deleted)\n"
         "Size:             524288 kB\nRss:                1000 kB\nPss:                 500 kB\n"
         "VmFlags: rd wr sh\n"
         "555500000000-555500100000 r-xp 00000000 08:01 34 /usr/bin/spindle: odd name\n"
         "Rss:                 300 kB\n"
         "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]\nRss:   24 kB\n";
  const auto use = memory_use("guest", name);
  std::filesystem::remove(name);
  REQUIRE(use);
  CHECK(use->guest_resident == 1000 * 1024);
  CHECK(use->overhead() == 324 * 1024);
  CHECK_FALSE(memory_use("guest", "/nonexistent"));
  CHECK(memory_use("guest")->overhead() > 0);
}

TEST_CASE("statistics: the file is replaced as a whole, and errors are told") {
  const test::TempDir directory;
  REQUIRE(directory.ok());
  const std::string file = directory.file("s.json");
  REQUIRE(check_json_file(file));
  CHECK_FALSE(std::filesystem::exists(file));  // a check leaves nothing
  REQUIRE(write_json_file(file, {{"a", 1}}));
  REQUIRE(write_json_file(file, {{"a", "not \xff UTF-8"}}));
  CHECK(nlohmann::json::parse(std::ifstream(file)).contains("a"));
  const std::string longest = directory.file(std::string(255, 'n'));
  REQUIRE(write_json_file(longest, {{"a", 1}}));
  for (const char* bad : {"none/s.json", "."}) {
    CHECK_FALSE(check_json_file(directory.file(bad)));
    CHECK_FALSE(write_json_file(directory.file(bad), {}));
  }
  const auto entries = std::filesystem::directory_iterator(directory.path());
  CHECK(std::distance(begin(entries), end(entries)) == 2);  // and nothing temporary
}

TEST_CASE("statistics: links are followed, and what is no regular file stays what it is") {
  const test::TempDir directory;
  REQUIRE(directory.ok());
  const std::string link = directory.file("link"), target = directory.file("target"),
                    fifo = directory.file("fifo");
  std::filesystem::create_symlink("target", link);
  for (int value : {1, 2}) {  // the link's target is made, then replaced
    REQUIRE(check_json_file(link));
    REQUIRE(write_json_file(link, {{"a", value}}));
    CHECK(std::filesystem::is_symlink(link));
    CHECK(nlohmann::json::parse(std::ifstream(target)).at("a") == value);
  }
  const std::string loop = directory.file("loop");
  std::filesystem::create_symlink("loop", loop);
  CHECK_FALSE(check_json_file(loop));
  REQUIRE(check_json_file("/dev/null"));
  REQUIRE(write_json_file("/dev/null", {}));
  CHECK(std::filesystem::is_character_file("/dev/null"));
  CHECK_FALSE(write_json_file("/dev/full", {}));
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(check_json_file(fifo));
  CHECK_FALSE(write_json_file(fifo, {}));  // nobody reads it
  const Fd reader(open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  REQUIRE(write_json_file(fifo, {{"a", 1}}));
  char bytes[100];
  CHECK(read(reader.get(), bytes, sizeof bytes) > 0);
  CHECK(std::filesystem::is_fifo(fifo));
}

TEST_CASE("console: options and keys") {
  CHECK(ConsoleOptions::parse("stdio")->kind == ConsoleOptions::Kind::Stdio);
  CHECK(ConsoleOptions::parse("none")->kind == ConsoleOptions::Kind::None);
  CHECK(ConsoleOptions::parse("file:x,y")->file == "x,y");
  CHECK_FALSE(ConsoleOptions::parse("file:"));
  CHECK_FALSE(ConsoleOptions::parse(""));
  ConsoleKeys keys;
  std::vector<uint8_t> guest;
  using Action = ConsoleKeys::Action;
  CHECK(keys.feed('x', guest) == Action::None);
  CHECK(keys.feed(1, guest) == Action::None);
  CHECK(keys.feed(1, guest) == Action::None);
  CHECK(guest == std::vector<uint8_t>{'x', 1});
  CHECK(keys.feed(1, guest) == Action::None);
  CHECK(keys.feed('h', guest) == Action::Help);
  CHECK(keys.feed(1, guest) == Action::None);
  CHECK(keys.feed('x', guest) == Action::Quit);
  CHECK(guest.size() == 2);
}

TEST_CASE("console: what the guest sends arrives in the file, all of it, also when the port had to wait") {
  struct Pin final : InterruptLine {
    void set_level(bool) override {}
  } pin;
  char name[] = "/tmp/spindle-console-XXXXXX";
  close(mkstemp(name));
  std::string expected;
  {
    auto console = Console::create({.kind = ConsoleOptions::Kind::File, .file = name});
    REQUIRE(console);
    legacy::SerialPort port(pin, **console);
    (*console)->start(port, [] {});
    const uint8_t fifo_on = 1;
    port.write(2, {&fifo_on, 1});
    for (unsigned i = 0; i < 3 * Console::kOutputLimit; ++i) {
      uint8_t status;
      do {
        port.read(5, {&status, 1});
      } while (!(status & 0x20));
      const auto byte = static_cast<uint8_t>('a' + i % 26);
      port.write(0, {&byte, 1});
      expected.push_back(static_cast<char>(byte));
    }
    (*console)->stop();
  }
  std::ifstream file(name);
  const std::string written{std::istreambuf_iterator<char>(file), {}};
  CHECK(written == expected);
  std::filesystem::remove(name);
}

TEST_CASE("console: a reader that has stopped reading stops the port, not the end of the run") {
  struct Pin final : InterruptLine {
    void set_level(bool) override {}
  } pin;
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const std::string name = "/proc/self/fd/" + std::to_string(ends[1]);
  auto console = Console::create({.kind = ConsoleOptions::Kind::File, .file = name});
  REQUIRE(console);
  legacy::SerialPort port(pin, **console);
  (*console)->start(port, [] {});
  uint8_t status = 0xff;
  size_t sent = 0;
  // Until it has been busy for a while with the pipe full: nobody will make room.
  for (unsigned busy = 0; busy < 1'000'000;) {
    port.read(5, {&status, 1});
    if (!(status & 0x20)) {
      ++busy;
      continue;
    }
    const uint8_t byte = 'x';
    port.write(0, {&byte, 1});
    ++sent;
    busy = 0;
  }
  CHECK(sent > Console::kOutputLimit);
  (*console)->stop();
  close(ends[0]);
  close(ends[1]);
}

}  // namespace spindle::vmm
