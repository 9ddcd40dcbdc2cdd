// EarlierMedia: what was counted on the media that a CD-ROM drive had before. A drive's counters go on when
// its medium changes, as QEMU's do.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "block/counters.h"
#include "block/disk.h"
#include "block/graph.h"

namespace spindle::vmm {

class EarlierMedia {
 public:
  /// On the reactor, of a disk that is closed.
  void add(const Disk& disk) {
    std::vector<uint64_t> sum;
    each_with(disk.counters(), [&sum](std::string_view, uint64_t value) { sum.push_back(value); });
    counters_ = std::move(sum);
    protocol_ += protocol_counters_below(disk.node());
  }

  /// Calls `visit(name, value)` for each counter of `now` and what there was before, in the documented order.
  template <typename Visit>
  void each_with(const DiskCounters& now, Visit visit) const {
    std::size_t i = 0;
    now.each([&](std::string_view name, uint64_t value) {
      visit(name, value + (counters_.empty() ? 0 : counters_[i++]));
    });
  }
  const ProtocolCounters& protocol() const { return protocol_; }

 private:
  std::vector<uint64_t> counters_;  // in that order; empty: nothing yet
  ProtocolCounters protocol_;
};

}  // namespace spindle::vmm
