// What the fuzzers of devices share: guest memory with hard edges, a reactor on the fuzzer's own thread,
// disks that can hold requests in flight, and how a broken promise is reported.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "block/io/reactor.h"
#include "devices/guest_memory.h"
#include "devices/test_support/memory_node.h"

namespace spindle::fuzz {

/// Ends the run as a find: something that always holds did not.
[[noreturn]] inline void stop(const char* what) {
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

/// Two blocks with a hole between them, each an allocation of its own size, so AddressSanitizer sees an
/// access one byte beyond. The second ends where 32 bits do.
class Ram {
 public:
  static constexpr uint64_t kBlock = 16 << 10;
  static constexpr uint64_t kFirst = 0x10'0000;
  static constexpr uint64_t kSecond = 0xffff'c000;

  Ram() : memory_({{kFirst, kBlock, blocks_[0].get()}, {kSecond, kBlock, blocks_[1].get()}}) {
    for (auto& block : blocks_) std::memset(block.get(), 0, kBlock);
  }
  const GuestMemory& memory() const { return memory_; }
  /// Writes nothing unless all of it lies in RAM.
  void write(uint64_t address, const void* data, std::size_t bytes) {
    if (uint8_t* host = memory_.at(address, bytes)) std::memcpy(host, data, bytes);
  }
  std::string contents() const {
    std::string all;
    for (const auto& block : blocks_) all.append(reinterpret_cast<const char*>(block.get()), kBlock);
    return all;
  }
  /// Where the byte at `address` is in contents(), and how many follow it in its block, itself included.
  struct Place {
    std::size_t index = 0;
    std::size_t left = 0;  ///< 0: not in RAM
  };
  static Place place(uint64_t address) {
    const uint64_t first = address - kFirst, second = address - kSecond;  // below: wraps to something large
    if (first < kBlock) return {.index = first, .left = kBlock - first};
    if (second < kBlock) return {.index = kBlock + second, .left = kBlock - second};
    return {};
  }
  /// Mostly in RAM, mostly aligned, sometimes anything.
  static uint64_t address(FuzzedDataProvider& input) {
    const auto where = input.ConsumeIntegral<uint16_t>();
    switch (input.ConsumeIntegralInRange(0, 7)) {
      case 0:
        return input.ConsumeIntegral<uint64_t>();
      case 1:
        return kFirst + where % kBlock;
      case 2:
        return kSecond + where % kBlock;
      case 3:
        return kSecond + where % kBlock / 16 * 16;
      default:
        return kFirst + where % kBlock / 16 * 16;
    }
  }

 private:
  using Block = std::unique_ptr<uint8_t, decltype(&std::free)>;
  static Block block() { return {static_cast<uint8_t*>(std::aligned_alloc(4096, kBlock)), &std::free}; }
  Block blocks_[2] = {block(), block()};
  GuestMemory memory_;
};

/// One for all inputs.
inline Reactor& reactor() {
  static const std::unique_ptr<Reactor> instance = [] {
    auto made = Reactor::create();
    if (!made) stop("no io_uring here");
    return std::move(*made);
  }();
  return *instance;
}

/// Lets the reactor do what is there to do. Disks in memory take no help of the kernel, so a few turns are as
/// good as many.
inline void settle() {
  for (int turns = 0; turns < 4; ++turns) {
    bool turned = false;
    reactor().post([&] { turned = true; });
    reactor().run_until([&] { return turned; });
  }
}

/// Holds operations of the disk in flight, lets them go on, makes them fail, or heals it.
inline void disturb(FuzzedDataProvider& input, test::MemoryNode& node) {
  const auto kind = static_cast<test::MemoryNode::Kind>(input.ConsumeIntegralInRange(0, 4));
  switch (input.ConsumeIntegralInRange(0, 4)) {
    case 0:
      return node.hold(kind);
    case 1:
      return node.release(kind);
    case 2:
      (void)node.release_one(kind);
      return;
    case 3:
      return node.fail(kind, 512 * input.ConsumeIntegral<uint8_t>(), 512, ErrorKind::Io, 1);
    case 4:
      return node.heal();
  }
}
inline void release_all(test::MemoryNode& node) {
  for (int kind = 0; kind < 5; ++kind) node.release(static_cast<test::MemoryNode::Kind>(kind));
}

/// An input is a `Guest`'s life: as many steps as it has bytes for, and `steps` at most.
template <typename Guest>
int live(const uint8_t* data, std::size_t size, unsigned steps) {
  FuzzedDataProvider input(data, size);
  Guest guest(input);
  for (unsigned step = 0; step < steps && input.remaining_bytes() > 0; ++step) guest.step();
  return 0;
}

}  // namespace spindle::fuzz
