#include "vmm/pci_bus.h"

#include <doctest/doctest.h>

#include <cstring>

#include "vmm/chipset.h"
#include "vmm/layout.h"

namespace spindle::vmm {
namespace {

struct Registers final : IoHandler {
  void read(uint64_t offset, std::span<uint8_t> data) override {
    last = offset;
    for (auto& byte : data) byte = value;
  }
  std::shared_ptr<ParkedAccess> write(uint64_t offset, std::span<const uint8_t> data) override {
    last = offset;
    value = data[0];
    return nullptr;
  }
  uint64_t last = UINT64_MAX;
  uint8_t value = 0x42;
};

struct Function final : pci::PciFunction {
  Function() : PciFunction({.vendor = 0x1234, .device = 0x5678, .base_class = 1, .interrupt_pin = 1}) {
    add_bar(0, pci::BarKind::Io, 32, &io);
    add_bar(1, pci::BarKind::Memory32, 0x1000, &memory);
    add_bar(4, pci::BarKind::Memory64, 0x4000, &wide);
  }
  Registers io, memory, wide;
};

struct NoLine final : legacy::SerialLine {
  bool transmit(uint8_t) override { return true; }
  void input_taken() override {}
};

struct Fixture {
  IoSpace ports, memory;
  NoLine line;
  std::vector<std::pair<unsigned, bool>> driven;
  unsigned resets = 0;
  Chipset chipset{ports, line, [this](unsigned gsi, bool level) { driven.emplace_back(gsi, level); },
                  MachineRequests{.reset = [this] { ++resets; }, .power_off = [] {}, .panicked = [] {}}};
  HostBridge bridge;
  IsaBridge isa;
  Function function, other;
  PciBus bus{ports, memory, chipset.pci_pins()};
  Fixture() {
    REQUIRE(bus.add({.device = 0}, bridge));
    REQUIRE(bus.add({.device = 1}, isa));
    REQUIRE(bus.add({.device = 3}, function));
  }

  template <typename T>
  T in(uint16_t port) {
    uint8_t bytes[sizeof(T)];
    ports.read(port, bytes, sizeof bytes);
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  template <typename T>
  void out(uint16_t port, T value) {
    uint8_t bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof value);
    ports.write(port, bytes, sizeof bytes);
  }
  void select(unsigned device, unsigned function_number, unsigned offset, unsigned bus_number = 0) {
    out<uint32_t>(0xcf8, 0x80000000u | bus_number << 16 | device << 11 | function_number << 8 | offset);
  }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "pci: mechanism 1 finds functions in all widths, and ones where there is none") {
  select(0, 0, 0);
  CHECK(in<uint32_t>(0xcfc) == 0x12378086);
  CHECK(in<uint16_t>(0xcfe) == 0x1237);
  CHECK(in<uint8_t>(0xcfd) == 0x80);
  CHECK(in<uint32_t>(0xcf8) == 0x80000000);
  select(1, 0, 0x0c);
  CHECK(in<uint8_t>(0xcfe) == 0x80);  // the ISA bridge says that there are more functions
  select(2, 0, 0);
  CHECK(in<uint32_t>(0xcfc) == 0xffffffff);
  select(0, 1, 0);
  CHECK(in<uint32_t>(0xcfc) == 0xffffffff);
  select(0, 0, 0, 1);
  CHECK(in<uint32_t>(0xcfc) == 0xffffffff);
  out<uint32_t>(0xcf8, 0);  // not enabled
  CHECK(in<uint32_t>(0xcfc) == 0xffffffff);
}

TEST_CASE_FIXTURE(Fixture,
                  "pci: the address port takes dwords only; the reset register lies between its bytes") {
  select(0, 0, 0);
  out<uint8_t>(0xcf8, 0x55);
  out<uint16_t>(0xcfa, 0x5555);
  CHECK(in<uint32_t>(0xcf8) == 0x80000000);
  CHECK(resets == 0);
  out<uint8_t>(0xcf9, 0x06);
  CHECK(resets == 1);
  out<uint32_t>(0xcf8, 0xffffffff);
  CHECK(resets == 1);
  CHECK(in<uint32_t>(0xcf8) == 0x80fffffc);
  CHECK(in<uint32_t>(0xcfc) == 0xffffffff);
}

TEST_CASE_FIXTURE(Fixture, "pci: an access that runs over the end of a register is split from nothing") {
  select(0, 0, 0);
  CHECK(in<uint32_t>(0xcfd) == 0xffffffff);  // reaches beyond CFFh: nobody takes it whole
  CHECK(in<uint16_t>(0xcff) == 0xffff);
  out<uint32_t>(0xcfe, 0);
}

TEST_CASE_FIXTURE(Fixture,
                  "pci: firmware's part places BARs by size, names the interrupt and enables decoding") {
  REQUIRE(bus.assign_resources());
  select(3, 0, 0x10);
  CHECK(in<uint32_t>(0xcfc) == (kPciIoStart | 1u));
  select(3, 0, 0x14);
  CHECK(in<uint32_t>(0xcfc) == 0xc0000000);
  select(3, 0, 0x20);
  CHECK(in<uint32_t>(0xcfc) == 0xc0004004);  // aligned to its 16 KiB, 64 bit
  select(3, 0, 0x24);
  CHECK(in<uint32_t>(0xcfc) == 0);
  select(3, 0, 0x3c);
  CHECK(in<uint8_t>(0xcfc) == 19);
  CHECK(PciBus::interrupt_gsi({.device = 4}, 1) == 16);
  CHECK(PciBus::interrupt_gsi({.device = 4}, 4) == 19);

  CHECK(in<uint8_t>(kPciIoStart + 5) == 0x42);
  CHECK(function.io.last == 5);
  uint8_t data[8];
  memory.read(0xc0004010, data, 8);
  CHECK(function.wide.last == 0x10);
}

TEST_CASE_FIXTURE(Fixture, "pci: windows follow the BARs and the command register") {
  REQUIRE(bus.assign_resources());
  select(3, 0, 0x10);
  out<uint32_t>(0xcfc, 0xffffffff);
  CHECK(in<uint32_t>(0xcfc) == 0xffe1);  // how a driver learns the size
  out<uint32_t>(0xcfc, 0xd000);
  CHECK(in<uint8_t>(kPciIoStart) == 0xff);
  CHECK(in<uint8_t>(0xd01f) == 0x42);
  CHECK(in<uint8_t>(0xd020) == 0xff);
  select(3, 0, 4);
  out<uint16_t>(0xcfc, 0);
  CHECK(in<uint8_t>(0xd000) == 0xff);
  out<uint16_t>(0xcfc, 3);
  CHECK(in<uint8_t>(0xd000) == 0x42);
  bus.reset();
  CHECK(in<uint8_t>(0xd000) == 0xff);
}

TEST_CASE_FIXTURE(Fixture, "pci: a BAR over the machine's own ports does not get them") {
  REQUIRE(bus.assign_resources());
  select(3, 0, 0x10);
  out<uint32_t>(0xcfc, 0x3e0);  // 3e0h-3ffh covers the serial port
  CHECK(in<uint8_t>(0x3e0) == 0x42);
  CHECK(in<uint8_t>(0x3fd) == 0x60);
  out<uint32_t>(0xcfc, 0xcf0);  // aligned down to ce0h: configuration ports stay reachable
  select(0, 0, 0);
  CHECK(in<uint32_t>(0xcfc) == 0x12378086);
}

TEST_CASE_FIXTURE(Fixture, "pci: a slot holds one function and there are 32 devices") {
  CHECK_FALSE(bus.add({.device = 3}, other));
  CHECK_FALSE(bus.add({.device = 32}, other));
  CHECK(bus.add({.device = 3, .function = 1}, other));
}

TEST_CASE_FIXTURE(Fixture, "pins: a shared pin is up while anybody pulls it") {
  InterruptLine& a = bus.interrupt({.device = 3}, 1);
  InterruptLine& b = bus.interrupt({.device = 7}, 1);
  a.set_level(true);
  b.set_level(true);
  b.set_level(true);
  a.set_level(false);
  CHECK(driven == std::vector<std::pair<unsigned, bool>>{{19, true}});
  b.set_level(false);
  CHECK(driven.back() == std::pair{19u, false});
  CHECK(driven.size() == 2);
  a.set_level(true);
  driven.clear();
  chipset.refresh_pins();
  CHECK(driven.size() == kIoApicPins);
  CHECK(driven[19] == std::pair{19u, true});
  CHECK(driven[18] == std::pair{18u, false});
}

TEST_CASE("io space: nobody answers with ones, and ends of the address space do not wrap") {
  IoSpace space;
  Registers top;
  space.add(UINT64_MAX - 3, 4, top);
  uint8_t data[8];
  space.read(0x1000, data, 8);
  CHECK(data[7] == 0xff);
  space.read(UINT64_MAX - 3, data, 8);
  CHECK(top.last == UINT64_MAX);
  space.read(UINT64_MAX - 3, std::span(data).first(4), 4);
  CHECK(top.last == 0);
  space.read(UINT64_MAX - 3, data, 2);  // repeated: four words
  CHECK(top.last == 0);
  CHECK(data[7] == 0x42);
  CHECK(space.write(0, data, 8) == nullptr);
}

}  // namespace spindle::vmm
