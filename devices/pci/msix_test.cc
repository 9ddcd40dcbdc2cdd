#include "devices/pci/msix.h"

#include <doctest/doctest.h>

#include <cstring>

namespace spindle::pci {
namespace {

struct Router final : MessageRouter {
  struct Sent {
    unsigned vector;
    uint64_t address;
    uint32_t data;
    bool operator==(const Sent&) const = default;
  };
  void route(unsigned vector, uint64_t address, uint32_t data) override {
    ++routes;
    targets.resize(std::max<std::size_t>(targets.size(), vector + 1));
    targets[vector] = {vector, address, data};
  }
  void signal(unsigned vector) override { sent.push_back(targets.at(vector)); }

  std::vector<Sent> targets;
  std::vector<Sent> sent;
  unsigned routes = 0;
};

void put32(MsiX& msix, uint64_t offset, uint32_t value) {
  uint8_t bytes[4];
  std::memcpy(bytes, &value, 4);
  msix.write_table(offset, bytes);
}
uint32_t get32(const MsiX& msix, uint64_t offset) {
  uint8_t bytes[4];
  msix.read_table(offset, bytes);
  uint32_t value;
  std::memcpy(&value, bytes, 4);
  return value;
}
uint64_t pending(const MsiX& msix) {
  uint8_t bytes[8];
  msix.read_pending(0, bytes);
  uint64_t value;
  std::memcpy(&value, bytes, 8);
  return value;
}
void program(MsiX& msix, unsigned vector, uint64_t address, uint32_t data) {
  put32(msix, 16 * vector, static_cast<uint32_t>(address));
  put32(msix, 16 * vector + 4, static_cast<uint32_t>(address >> 32));
  put32(msix, 16 * vector + 8, data);
}

TEST_CASE("vectors start masked, and a disabled function sends nothing") {
  Router router;
  MsiX msix(3, router);
  CHECK(get32(msix, 12) == 1);
  CHECK(get32(msix, 16 * 2 + 12) == 1);
  program(msix, 0, 0xfee00000, 0x41);
  put32(msix, 12, 0);
  msix.signal(0);
  CHECK(router.sent.empty());
  CHECK(router.routes == 0);
  CHECK(pending(msix) == 0);
}

TEST_CASE("a live vector is routed once and sent each time") {
  Router router;
  MsiX msix(3, router);
  msix.set_control(kMsixEnable);
  program(msix, 1, 0x1'fee0'0000, 0x41);
  CHECK(router.routes == 0);  // still masked
  put32(msix, 16 + 12, 0);
  CHECK(router.routes == 1);
  msix.signal(1);
  msix.signal(1);
  CHECK(router.sent == std::vector<Router::Sent>(2, {1, 0x1'fee0'0000, 0x41}));
  put32(msix, 16 + 12, 1);
  put32(msix, 16 + 12, 0);
  CHECK(router.routes == 1);  // nothing changed
  program(msix, 1, 0x1'fee0'0000, 0x42);
  CHECK(router.routes == 2);
}

TEST_CASE("what is signalled while masked is pending, and delivered once when unmasked") {
  Router router;
  MsiX msix(65, router);
  msix.set_control(kMsixEnable);
  program(msix, 2, 0xfee00000, 7);
  msix.signal(2);
  msix.signal(2);
  CHECK(router.sent.empty());
  CHECK(pending(msix) == 4);
  put32(msix, 2 * 16 + 12, 0);
  CHECK(router.sent == std::vector<Router::Sent>{{2, 0xfee00000, 7}});
  CHECK(pending(msix) == 0);

  msix.set_control(kMsixEnable | kMsixFunctionMask);
  msix.signal(2);
  CHECK(router.sent.size() == 1);
  CHECK(pending(msix) == 4);
  msix.set_control(kMsixEnable);
  CHECK(router.sent.size() == 2);
}

TEST_CASE("reserved bits, ends and vectors that do not exist are safe") {
  Router router;
  MsiX msix(2, router);
  msix.set_control(kMsixEnable);
  msix.signal(2);
  msix.signal(0xffff);
  CHECK(pending(msix) == 0);
  put32(msix, 12, 0xffffffff);
  CHECK(get32(msix, 12) == 1);
  put32(msix, 32, 5);
  put32(msix, ~0ull - 3, 5);
  put32(msix, 30, 0xffffffff);  // straddles the end
  CHECK(get32(msix, 32) == 0);
  uint8_t bytes[8];
  msix.read_pending(~0ull - 8, bytes);
  CHECK(bytes[0] == 0);
}

TEST_CASE("a table written in odd sizes holds what was written; a write across two vectors counts for both") {
  Router router;
  MsiX msix(2, router);
  msix.set_control(kMsixEnable);
  program(msix, 0, 0xfee00000, 7);
  program(msix, 1, 0xfee01000, 8);
  // Vector 0's mask and what is reserved after it, then the lower half of vector 1's address.
  const uint8_t across[8] = {0, 0xff, 0xff, 0xff, 0, 0x20, 0xe0, 0xfe};
  const uint8_t unmask = 0, upper = 9;
  msix.write_table(16 + 12, {&unmask, 1});
  msix.signal(0);
  msix.write_table(12, across);
  CHECK(router.sent == std::vector<Router::Sent>{{0, 0xfee00000, 7}});
  CHECK(get32(msix, 12) == 0);
  CHECK(get32(msix, 16) == 0xfee02000);
  msix.signal(1);
  CHECK(router.sent.back() == Router::Sent{1, 0xfee02000, 8});
  msix.write_table(16 + 9, {&upper, 1});  // the second byte of the data of a vector that is live
  msix.signal(1);
  CHECK(router.sent.back() == Router::Sent{1, 0xfee02000, 0x908});
  msix.write_table(16, {});
  uint8_t byte = 0xee;
  msix.read_table(31, {&byte, 1});
  CHECK(byte == 0);
  msix.read_pending(7, {&byte, 1});
  CHECK(byte == 0);
}

TEST_CASE("reset masks and forgets") {
  Router router;
  MsiX msix(2, router);
  msix.set_control(kMsixEnable);
  program(msix, 0, 0xfee00000, 7);
  msix.signal(0);
  msix.reset();
  CHECK_FALSE(msix.enabled());
  CHECK(get32(msix, 0) == 0);
  msix.set_control(kMsixEnable);
  put32(msix, 12, 0);
  CHECK(router.sent.empty());
}

}  // namespace
}  // namespace spindle::pci
