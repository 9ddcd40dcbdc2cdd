// ThrottleLimits: how fast a disk may be, with the names QEMU gives to each number.
//
// Six rates: bytes and operations, each in total, of reads and of writes. A rate has an average per second,
// and may have a burst: `max` per second for as long as `max_length` seconds. With iops_size, an operation
// larger than that many bytes counts as several. 0 means: no such limit.
//
// The same numbers have two spellings, one in disk options (throttling.bps-total-max) and one in QMP
// (bps_max); messages use the one the user wrote.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "block/result.h"

namespace spindle {

struct ThrottleRate {
  uint64_t average = 0;     ///< units a second
  uint64_t max = 0;         ///< units a second in a burst
  uint64_t max_length = 1;  ///< seconds
  bool operator==(const ThrottleRate&) const = default;
};

enum class ThrottleKind : uint8_t { BpsTotal, BpsRead, BpsWrite, IopsTotal, IopsRead, IopsWrite };
inline constexpr std::size_t kThrottleKinds = 6;

struct ThrottleLimits {
  std::array<ThrottleRate, kThrottleKinds> rates;
  uint64_t iops_size = 0;  ///< bytes

  const ThrottleRate& rate(ThrottleKind kind) const { return rates[static_cast<std::size_t>(kind)]; }
  bool limits_reads() const;
  bool limits_writes() const;
  bool operator==(const ThrottleLimits&) const = default;
};

enum class ThrottleSpelling : uint8_t { DiskOption, Qmp };

/// One of the numbers, under one of its names.
struct ThrottleField {
  std::string name;
  uint64_t* value;
  uint64_t unset;  ///< what it is if nobody gives it
  bool bytes;      ///< so many bytes, rather than operations or seconds
  bool required;   ///< QMP's block_set_io_throttle must have it
};
/// All numbers of `limits`, which must outlive them.
std::vector<ThrottleField> throttle_fields(ThrottleLimits& limits, ThrottleSpelling spelling);

/// Which numbers go together, as QEMU sees it. The message names what contradicts what.
Result<> check_throttle_limits(const ThrottleLimits& limits, ThrottleSpelling spelling);

}  // namespace spindle
