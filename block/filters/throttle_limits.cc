#include "block/filters/throttle_limits.h"

#include <fmt/format.h>

namespace spindle {
namespace {

constexpr uint64_t kLargest = 1'000'000'000'000'000;  // QEMU's, so that what works there works here

struct Names {
  std::string_view option, qmp;
};
constexpr std::array<Names, kThrottleKinds> kNames{{{"bps-total", "bps"},
                                                    {"bps-read", "bps_rd"},
                                                    {"bps-write", "bps_wr"},
                                                    {"iops-total", "iops"},
                                                    {"iops-read", "iops_rd"},
                                                    {"iops-write", "iops_wr"}}};

std::string name_of(std::size_t kind, ThrottleSpelling spelling, std::string_view option_end = "",
                    std::string_view qmp_end = "") {
  return spelling == ThrottleSpelling::DiskOption
             ? fmt::format("throttling.{}{}", kNames[kind].option, option_end)
             : fmt::format("{}{}", kNames[kind].qmp, qmp_end);
}
std::string max_name(std::size_t kind, ThrottleSpelling spelling) {
  return name_of(kind, spelling, "-max", "_max");
}
std::string length_name(std::size_t kind, ThrottleSpelling spelling) {
  return name_of(kind, spelling, "-max-length", "_max_length");
}
std::string_view size_name(ThrottleSpelling spelling) {
  return spelling == ThrottleSpelling::DiskOption ? "throttling.iops-size" : "iops_size";
}

std::unexpected<Error> refuse(std::string detail) {
  return std::unexpected(Error::invalid("throttling", "", std::move(detail)));
}

Result<> check_rate(const ThrottleRate& rate, std::size_t kind, ThrottleSpelling spelling) {
  for (const auto& [value, name] :
       {std::pair{rate.average, name_of(kind, spelling)}, std::pair{rate.max, max_name(kind, spelling)}}) {
    if (value > kLargest)
      return refuse(fmt::format("{}={} is too large: at most {} is possible", name, value, kLargest));
  }
  if (rate.max_length == 0) {
    return refuse(
        fmt::format("{}=0 is no length of a burst: give seconds, 1 or more", length_name(kind, spelling)));
  }
  if (rate.max == 0) {
    if (rate.max_length == 1) return {};
    return refuse(fmt::format("{} needs {} as well: the rate of the burst", length_name(kind, spelling),
                              max_name(kind, spelling)));
  }
  if (rate.average == 0) {
    return refuse(fmt::format("{} needs {} as well: the rate after the burst", max_name(kind, spelling),
                              name_of(kind, spelling)));
  }
  if (rate.max < rate.average) {
    return refuse(fmt::format("{}={} cannot be lower than {}={}", max_name(kind, spelling), rate.max,
                              name_of(kind, spelling), rate.average));
  }
  if (rate.max_length > kLargest / rate.max) {
    return refuse(fmt::format("{}={} is too long for {}={}: their product may be {}",
                              length_name(kind, spelling), rate.max_length, max_name(kind, spelling),
                              rate.max, kLargest));
  }
  return {};
}

}  // namespace

bool ThrottleLimits::limits_reads() const {
  return rate(ThrottleKind::BpsTotal).average || rate(ThrottleKind::BpsRead).average ||
         rate(ThrottleKind::IopsTotal).average || rate(ThrottleKind::IopsRead).average;
}

bool ThrottleLimits::limits_writes() const {
  return rate(ThrottleKind::BpsTotal).average || rate(ThrottleKind::BpsWrite).average ||
         rate(ThrottleKind::IopsTotal).average || rate(ThrottleKind::IopsWrite).average;
}

std::vector<ThrottleField> throttle_fields(ThrottleLimits& limits, ThrottleSpelling spelling) {
  std::vector<ThrottleField> fields;
  for (std::size_t kind = 0; kind < kThrottleKinds; ++kind) {
    ThrottleRate& rate = limits.rates[kind];
    const bool bytes = kind < static_cast<std::size_t>(ThrottleKind::IopsTotal);
    fields.push_back({name_of(kind, spelling), &rate.average, 0, bytes, true});
    fields.push_back({max_name(kind, spelling), &rate.max, 0, bytes, false});
    fields.push_back({length_name(kind, spelling), &rate.max_length, 1, false, false});
  }
  fields.push_back({std::string(size_name(spelling)), &limits.iops_size, 0, true, false});
  return fields;
}

Result<> check_throttle_limits(const ThrottleLimits& limits, ThrottleSpelling spelling) {
  const auto iops = static_cast<std::size_t>(ThrottleKind::IopsTotal);
  for (const std::size_t total : {std::size_t{0}, iops}) {
    for (const std::size_t part : {total + 1, total + 2}) {
      if ((limits.rates[total].average && limits.rates[part].average) ||
          (limits.rates[total].max && limits.rates[part].max)) {
        return refuse(
            fmt::format("{} and {} cannot be used at the same time: limit the total, or reads and "
                        "writes each",
                        name_of(total, spelling), name_of(part, spelling)));
      }
    }
  }
  for (std::size_t kind = 0; kind < kThrottleKinds; ++kind)
    SPINDLE_TRY(check_rate(limits.rates[kind], kind, spelling));
  if (limits.iops_size > kLargest) {
    return refuse(fmt::format("{}={} is too large: at most {} is possible", size_name(spelling),
                              limits.iops_size, kLargest));
  }
  if (limits.iops_size && !limits.rates[iops].average && !limits.rates[iops + 1].average &&
      !limits.rates[iops + 2].average) {
    return refuse(fmt::format("{} needs a limit of operations as well, such as {}", size_name(spelling),
                              name_of(iops, spelling)));
  }
  return {};
}

}  // namespace spindle
