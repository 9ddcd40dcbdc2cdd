#include "block/filters/throttle_buckets.h"

#include <algorithm>
#include <cmath>

namespace spindle {
namespace {

constexpr double kNanoseconds = 1e9;

// Until `extra` units have leaked away at `rate` a second; never less than that takes. The limits keep it
// below 2^63 ns only for what fits the buckets, so it is capped: who waits asks again anyway.
ThrottleBuckets::Time time_to_leak(double extra, uint64_t rate) {
  constexpr double kLongest = 86'400 * kNanoseconds;
  return ThrottleBuckets::Time(
      static_cast<int64_t>(std::min(kLongest, std::ceil(extra / static_cast<double>(rate) * kNanoseconds))));
}

// The kinds that a direction fills: each total, and its own.
std::array<std::size_t, 4> kinds_of(ThrottleDirection direction) {
  const std::size_t own = direction == ThrottleDirection::Read ? 1 : 2;
  return {0, own, 3, 3 + own};
}

}  // namespace

void ThrottleBuckets::leak(Time now) {
  const double seconds = static_cast<double>((now - leaked_to_).count()) / kNanoseconds;
  leaked_to_ = now;
  for (std::size_t kind = 0; kind < kThrottleKinds; ++kind) {
    const ThrottleRate& rate = limits_.rates[kind];
    Bucket& bucket = buckets_[kind];
    bucket.level = std::max(0.0, bucket.level - static_cast<double>(rate.average) * seconds);
    bucket.burst_level = std::max(0.0, bucket.burst_level - static_cast<double>(rate.max) * seconds);
  }
}

ThrottleBuckets::Time ThrottleBuckets::wait(ThrottleDirection direction) const {
  Time longest{0};
  for (const std::size_t kind : kinds_of(direction)) {
    const ThrottleRate& rate = limits_.rates[kind];
    if (rate.average == 0) continue;
    const Bucket& bucket = buckets_[kind];
    const double brim = rate.max == 0 ? static_cast<double>(rate.average) / 10
                                      : static_cast<double>(rate.max) * static_cast<double>(rate.max_length);
    if (bucket.level > brim) {
      longest = std::max(longest, time_to_leak(bucket.level - brim, rate.average));
    } else if (rate.max_length > 1) {
      const double extra = bucket.burst_level - static_cast<double>(rate.max) / 10;
      if (extra > 0) longest = std::max(longest, time_to_leak(extra, rate.max));
    }
  }
  return longest;
}

void ThrottleBuckets::account(ThrottleDirection direction, uint64_t bytes) {
  double operations = 1;
  if (limits_.iops_size != 0 && bytes > limits_.iops_size)
    operations = static_cast<double>(bytes) / static_cast<double>(limits_.iops_size);
  for (const std::size_t kind : kinds_of(direction)) {
    const ThrottleRate& rate = limits_.rates[kind];
    if (rate.average == 0) continue;
    const double units = kind < 3 ? static_cast<double>(bytes) : operations;
    buckets_[kind].level += units;
    if (rate.max_length > 1) buckets_[kind].burst_level += units;
  }
}

}  // namespace spindle
