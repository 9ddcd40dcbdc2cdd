// A disk's counters: exact, with stable names (DESIGN 4). `spindle run --stats-json` prints them under these
// names.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>

namespace spindle {

/// One counter. Written by the disk's reactor only, readable from any thread.
class Counter {
 public:
  void add(uint64_t amount = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct DiskCounters {
  Counter read_ops, read_bytes, write_ops, write_bytes, zero_ops, discard_ops, fua_writes, cache_toggles,
      errors;
  // Reasons to flush...
  Counter flush_requests, flushes_writethrough, flushes_toggle, flushes_background;
  // ...and what became of them. The reasons always sum to the outcomes once nothing is in flight.
  Counter flushes_issued, flushes_elided, flushes_coalesced, flushes_failed;

  /// Calls `visit(name, value)` for each counter in the documented order.
  template <typename Visit>
  void each(Visit visit) const {
    const std::pair<std::string_view, const Counter*> all[] = {
        {"read_ops", &read_ops},
        {"read_bytes", &read_bytes},
        {"write_ops", &write_ops},
        {"write_bytes", &write_bytes},
        {"zero_ops", &zero_ops},
        {"discard_ops", &discard_ops},
        {"fua_writes", &fua_writes},
        {"cache_toggles", &cache_toggles},
        {"errors", &errors},
        {"flush_requests", &flush_requests},
        {"flushes_writethrough", &flushes_writethrough},
        {"flushes_toggle", &flushes_toggle},
        {"flushes_background", &flushes_background},
        {"flushes_issued", &flushes_issued},
        {"flushes_elided", &flushes_elided},
        {"flushes_coalesced", &flushes_coalesced},
        {"flushes_failed", &flushes_failed},
    };
    for (const auto& [name, counter] : all) visit(name, counter->value());
  }
};

}  // namespace spindle
