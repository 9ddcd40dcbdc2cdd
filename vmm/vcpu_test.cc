// vCPUs on real KVM, with guests of a few bytes in real mode. Only with SPINDLE_KVM_TESTS=1 in the
// environment, because that /dev/kvm exists does not mean that it is a true one
// (guest-tests/lib/kvmprobe.py); the guest tests run them where it is.
#include "vmm/vcpu.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "block/test_support/environment.h"
#include "vmm/memory.h"

namespace spindle::vmm {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr uint16_t kParkingPort = 0x10, kCountingPort = 0x11;

// Counts accesses and lets the test wait for them.
struct Counting : IoHandler {
  void read(uint64_t, std::span<uint8_t>) override {}
  std::shared_ptr<ParkedAccess> write(uint64_t, std::span<const uint8_t>) override {
    std::lock_guard lock(mutex);
    ++count;
    changed.notify_all();
    if (!parks) return nullptr;
    access = std::make_shared<ParkedAccess>();
    return access;
  }
  bool wait_for(unsigned wanted) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, [&] { return count >= wanted; });
  }
  unsigned get() {
    std::lock_guard lock(mutex);
    return count;
  }
  std::mutex mutex;
  std::condition_variable changed;
  unsigned count = 0;
  bool parks = false;
  std::shared_ptr<ParkedAccess> access;
};

struct Guest {
  std::optional<Kvm> kvm;
  std::unique_ptr<GuestRam> ram;
  std::unique_ptr<Vm> vm;
  IoSpace ports, memory;
  Counting parking, counting;
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<CpuEvent> event;
  std::unique_ptr<Vcpu> cpu;
  KvmCpu::State power_on;

  explicit Guest(std::vector<uint8_t> code) {
    kvm = *Kvm::open();
    ram = *GuestRam::create(kMinMemory);
    vm = *Vm::create(*kvm);
    REQUIRE(ram->attach(*vm));
    parking.parks = true;
    ports.add(kParkingPort, 1, parking);
    ports.add(kCountingPort, 1, counting);
    std::memcpy(ram->memory().at(0x1000, code.size()), code.data(), code.size());
    REQUIRE(Vcpu::install_kick_signal());
    cpu = std::make_unique<Vcpu>(*KvmCpu::create(*vm, 0), ports, memory, [this](CpuEvent reported) {
      std::lock_guard lock(mutex);
      event = std::move(reported);
      changed.notify_all();
    });
    auto sregs = *cpu->cpu().sregs();
    sregs.cs.base = 0;
    sregs.cs.selector = 0;
    sregs.idt.limit = 0;
    REQUIRE(cpu->cpu().set_sregs(sregs));
    kvm_regs regs{};
    regs.rip = 0x1000;
    regs.rflags = 2;
    REQUIRE(cpu->cpu().set_regs(regs));
    power_on = *cpu->cpu().state({});
    cpu->start();
    cpu->resume();
  }
};

bool no_kvm() {
  const char* wanted = std::getenv("SPINDLE_KVM_TESTS");
  if (wanted && std::string_view(wanted) == "1") {
    if (access("/dev/kvm", R_OK | W_OK) == 0) return false;
    FAIL("SPINDLE_KVM_TESTS=1, but /dev/kvm cannot be used");
  }
  test::skipped("real KVM: run by the guest tests");
  return true;
}

// mov dx, 10h; out dx, al; mov dx, 11h; again: out dx, al; jmp again
const std::vector<uint8_t> kParkThenCount{0xba, 0x10, 0, 0xee, 0xba, 0x11, 0, 0xee, 0xeb, 0xfd};

}  // namespace

TEST_CASE("vcpu: a parked access holds its vCPU, can be paused, and goes on when it is finished") {
  if (no_kvm()) return;
  Guest guest(kParkThenCount);
  REQUIRE(guest.parking.wait_for(1));
  guest.cpu->request_pause();
  guest.cpu->wait_paused();
  CHECK(guest.counting.get() == 0);
  guest.cpu->resume();
  guest.cpu->request_pause();
  guest.cpu->wait_paused();
  CHECK(guest.counting.get() == 0);
  CHECK(guest.parking.get() == 1);  // the guest's instruction was not repeated
  guest.parking.access->finish();
  guest.cpu->resume();
  REQUIRE(guest.counting.wait_for(100));
}

TEST_CASE("vcpu: pausing stops a busy guest, resuming lets it go on") {
  if (no_kvm()) return;
  Guest guest(kParkThenCount);
  REQUIRE(guest.parking.wait_for(1));
  guest.parking.access->finish();
  for (int round = 0; round < 50; ++round) {
    const unsigned before = guest.counting.get();
    REQUIRE(guest.counting.wait_for(before + 1));
    guest.cpu->request_pause();
    guest.cpu->wait_paused();
    const unsigned paused = guest.counting.get();
    auto regs = guest.cpu->cpu().regs();  // and gives the machine access to its state
    REQUIRE(regs);
    CHECK(guest.counting.get() == paused);
    guest.cpu->resume();
  }
}

TEST_CASE("vcpu: a reset starts over, and forgets what was parked") {
  if (no_kvm()) return;
  Guest guest(kParkThenCount);
  for (unsigned round = 1; round <= 5; ++round) {
    REQUIRE(guest.parking.wait_for(round));
    guest.cpu->request_pause();
    guest.cpu->wait_paused();
    REQUIRE(guest.cpu->reset(guest.power_on));
    guest.cpu->resume();
  }
  REQUIRE(guest.parking.wait_for(6));
  CHECK(guest.counting.get() == 0);
  // The end of the test stops a parked vCPU.
}

TEST_CASE("vcpu: a guest that spins without an exit is stopped all the same") {
  if (no_kvm()) return;
  Guest guest({0xba, 0x11, 0, 0xee, 0xeb, 0xfe});  // one out, then jmp to itself
  REQUIRE(guest.counting.wait_for(1));
  for (int round = 0; round < 20; ++round) {
    guest.cpu->request_pause();
    guest.cpu->wait_paused();
    guest.cpu->resume();
  }
  CHECK(guest.counting.get() == 1);
}

TEST_CASE("vcpu: a triple fault is reported once and pauses the vCPU") {
  if (no_kvm()) return;
  Guest guest({0xcc});  // a breakpoint, with no interrupt table to find its handler in
  {
    std::unique_lock lock(guest.mutex);
    REQUIRE(guest.changed.wait_for(lock, kPatience, [&] { return guest.event.has_value(); }));
    CHECK(guest.event->kind == CpuEventKind::TripleFault);
  }
  guest.cpu->wait_paused();
}

}  // namespace spindle::vmm
