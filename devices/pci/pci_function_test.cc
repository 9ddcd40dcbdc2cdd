// Configuration space against a guest that writes what it likes: what is not its to write stays, and a BAR
// that makes no sense answers nowhere.
#include "devices/pci/pci_function.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace spindle::pci {
namespace {

struct Function final : PciFunction {
  Function() : PciFunction({.vendor = 0x1234, .device = 0x5678, .base_class = 1, .interrupt_pin = 1}) {
    add_bar(0, BarKind::Io, 32, nullptr);
    add_bar(1, BarKind::Memory32, 0x1000, nullptr);
    add_bar(4, BarKind::Memory64, 0x4000, nullptr);
    capability = add_capability(0x09, 8);
    set_writable(capability + 4, 2, 0x0f0f);
  }
  unsigned capability = 0;

  std::vector<uint8_t> bytes() {
    std::vector<uint8_t> all;
    for (unsigned offset = 0; offset < 256; ++offset)
      all.push_back(static_cast<uint8_t>(read_config(offset, 1)));
    return all;
  }
  /// Where a BAR answers; 0: nowhere.
  uint64_t address(unsigned index) {
    for (const BarMapping& mapping : mappings()) {
      if (mapping.index == index) return mapping.address;
    }
    return 0;
  }
};

// The bits that a guest may change, by the standard and as the function above describes itself.
std::vector<uint8_t> writable_bits(const Function& function) {
  std::vector<uint8_t> mask(256);
  const auto allow = [&mask](unsigned offset, uint32_t bits) {
    for (unsigned i = 0; i < 4; ++i) mask[offset + i] |= static_cast<uint8_t>(bits >> (8 * i));
  };
  allow(kCommand, kCommandIo | kCommandMemory | kCommandBusMaster | kCommandInterruptDisable);
  allow(kInterruptLine, 0xff);
  allow(kBar0, 0xffe0);
  allow(kBar0 + 4, 0xffff'f000);
  allow(kBar0 + 16, 0xffff'c000);
  allow(kBar0 + 20, 0xffff'ffff);
  allow(function.capability + 4, 0x0f0f);
  return mask;
}

TEST_CASE(
    "configuration writes of every size at every place change what is the guest's, and a reset undoes them") {
  Function function;
  const std::vector<uint8_t> mask = writable_bits(function), first = function.bytes();
  for (unsigned width : {1u, 2u, 3u, 4u}) {
    for (uint32_t value : {0xffff'ffffu, 0u, 0xa5a5'a5a5u}) {
      for (unsigned offset = 0; offset + width <= 256; ++offset) {
        function.write_config(offset, width, value);
        const auto now = function.bytes();
        bool kept = true;
        for (unsigned i = 0; i < 256; ++i) kept = kept && ((now[i] ^ first[i]) & ~mask[i]) == 0;
        CAPTURE(offset);
        CAPTURE(width);
        REQUIRE(kept);
        for (unsigned i = 0; i < width; ++i) {
          const auto written = static_cast<uint8_t>(value >> (8 * i));
          REQUIRE((now[offset + i] & mask[offset + i]) == (written & mask[offset + i]));
        }
      }
    }
  }
  function.reset();
  CHECK(function.bytes() == first);
}

TEST_CASE("configuration accesses that leave the space, or are too wide, read ones and change nothing") {
  Function function;
  const auto first = function.bytes();
  for (const auto& [offset, width] : std::vector<std::pair<unsigned, unsigned>>{{255, 2},
                                                                                {254, 4},
                                                                                {256, 1},
                                                                                {256, 4},
                                                                                {~0u, 1},
                                                                                {~0u - 3, 4},
                                                                                {~0u, 2},
                                                                                {0, 5},
                                                                                {0, 8},
                                                                                {4, ~0u}}) {
    CHECK(function.read_config(offset, width) == 0xffffffff);
    function.write_config(offset, width, 0xffffffff);
  }
  function.write_config(kCommand, 0, 0xffffffff);
  CHECK(function.bytes() == first);
}

TEST_CASE("a BAR at 0, over the end of its space, or not decoded answers nowhere") {
  Function function;
  function.assign_bar(0, 0xc000);
  function.assign_bar(1, 0xc000'0000);
  function.assign_bar(4, 0x8'0000'0000);
  CHECK(function.mappings().empty());
  function.write_config(kCommand, 2, kCommandIo);
  CHECK(function.address(0) == 0xc000);
  CHECK(function.mappings().size() == 1);
  function.write_config(kCommand, 2, kCommandMemory);
  CHECK(function.address(1) == 0xc000'0000);
  CHECK(function.address(4) == 0x8'0000'0000);
  CHECK(function.mappings().size() == 2);
  function.write_config(kCommand, 2, kCommandIo | kCommandMemory);

  for (unsigned bar : {0u, 1u, 4u}) {
    function.assign_bar(bar, 0);
    CHECK(function.address(bar) == 0);
  }
  // As a driver learns the size. Ports and 32-bit memory end where the space does; 64-bit memory would wrap.
  for (unsigned offset = kBar0; offset < kBar0 + 24; offset += 4)
    function.write_config(offset, 4, 0xffffffff);
  CHECK(function.address(0) == 0xffe0);
  CHECK(function.address(1) == 0xffff'f000);
  CHECK(function.address(4) == 0);
  // Written in parts of any size, as far as it has come.
  function.write_config(kBar0 + 16, 2, 0x4000);
  function.write_config(kBar0 + 18, 1, 0x12);
  function.write_config(kBar0 + 19, 4, 0x0000'0034);  // and into the upper half
  CHECK(function.address(4) == 0xff00'0000'3412'4000);
}

}  // namespace
}  // namespace spindle::pci
