// ThrottleBuckets: the arithmetic of throttling. Leaky buckets as QEMU's, so that the same numbers give the
// same speed there and here.
//
// Each rate has a bucket. A request goes as soon as no bucket it fills is over its brim, and then pours its
// units in, be they ever so many: what is too much is waited for by those behind it. A bucket leaks its
// average per second. Its brim is a tenth of a second's average without a burst, and max * max_length with
// one. A burst of more than a second has a second bucket of the same units, which leaks max per second and
// has a tenth of max as its brim: it keeps the burst itself to its rate.
//
// Knows no clock: the caller says what time it is, in nanoseconds that never go back.
#pragma once

#include <chrono>

#include "block/filters/throttle_limits.h"

namespace spindle {

enum class ThrottleDirection : uint8_t { Read, Write };

class ThrottleBuckets {
 public:
  using Time = std::chrono::nanoseconds;

  /// All buckets are empty at first.
  ThrottleBuckets(const ThrottleLimits& limits, Time now) : limits_(limits), leaked_to_(now) {}

  const ThrottleLimits& limits() const { return limits_; }
  /// Lets the buckets leak until `now`.
  void leak(Time now);
  /// How long from the last leak() until a request of this direction may go; 0: now.
  Time wait(ThrottleDirection direction) const;
  /// A request of so many bytes goes.
  void account(ThrottleDirection direction, uint64_t bytes);

 private:
  struct Bucket {
    double level = 0;
    double burst_level = 0;
  };

  ThrottleLimits limits_;
  std::array<Bucket, kThrottleKinds> buckets_;
  Time leaked_to_;
};

}  // namespace spindle
