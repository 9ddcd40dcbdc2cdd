// A queue with its driver, and nothing around them.
#pragma once

#include <doctest/doctest.h>

#include <type_traits>

#include "devices/virtio/test_queue.h"
#include "devices/virtio/virtqueue.h"

namespace spindle::virtio::test {

inline constexpr uint32_t kMaxSize = 256;

/// `Driver`: TestQueue, or the kind of ring that a test is about.
template <typename Driver>
struct QueueRig {
  static constexpr bool kPacked =
      std::is_same_v<Driver, PackedTestQueue> || (std::is_same_v<Driver, TestQueue> && kPackedRings);

  explicit QueueRig(uint32_t size = 8, RingFeatures features = {.indirect = true, .event_idx = true})
      : driver(ram, size, features.event_idx) {
    features.packed = kPacked;
    REQUIRE(ring.enable(driver.layout(), ram.memory(), features, kMaxSize, kMaxSize).empty());
  }
  Pop pop() {
    driver.publish();
    return ring.pop(chain);
  }
  /// Takes a chain of 16 bytes to read at `a`, 512 to write at `b` and one at `c`, and gives it back.
  void check_three_parts(uint64_t a, uint64_t b, uint64_t c) {
    REQUIRE(pop() == Pop::Taken);
    CHECK(chain.fault == ChainFault::None);
    REQUIRE(chain.parts.size() == 3);
    REQUIRE(chain.readable().size() == 1);
    CHECK(chain.readable()[0].iov_base == ram.at(a));
    CHECK(chain.readable_bytes == 16);
    CHECK(chain.writable()[0].iov_base == ram.at(b));
    CHECK(chain.writable()[1].iov_len == 1);
    CHECK(chain.writable_bytes == 513);
    CHECK(chain.last_writable == ram.at(c));
    CHECK(ring.outstanding() == 1);
    ring.push(chain.token, 513);
    ring.publish();
    const auto used = driver.take();
    REQUIRE(used);
    CHECK(used->length == 513);
    CHECK(ring.outstanding() == 0);
  }
  /// The next chain breaks the queue, which stays so, and says so every time, until it is enabled anew.
  void check_broken() {
    CHECK(pop() == Pop::Broken);
    CHECK_FALSE(ring.broken_reason().empty());
    CHECK(ring.pop(chain) == Pop::Broken);
    CHECK_FALSE(ring.enable_notifications());
    const Driver fresh(ram, 8, true);
    CHECK(ring.enable(fresh.layout(), ram.memory(), {.packed = kPacked}, kMaxSize, kMaxSize).empty());
    CHECK(ring.pop(chain) == Pop::Empty);
  }

  TestRam ram;
  Driver driver;
  Virtqueue ring;
  Chain chain;
};

}  // namespace spindle::virtio::test
