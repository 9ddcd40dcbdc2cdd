// ClusterSet: a set of host clusters, here of those that hold metadata, so that no guest's data is ever
// written over them. A bit each, in pages of 4096 clusters that exist where there are any.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

namespace spindle::qcow2 {

class ClusterSet {
 public:
  void add(uint64_t first, uint64_t count = 1) {
    for (uint64_t cluster = first; cluster < first + count; ++cluster)
      pages_[cluster / kPage][cluster % kPage / 64] |= uint64_t{1} << cluster % 64;
  }
  void remove(uint64_t first, uint64_t count = 1) {
    for (uint64_t cluster = first; cluster < first + count; ++cluster) {
      if (const auto page = pages_.find(cluster / kPage); page != pages_.end())
        page->second[cluster % kPage / 64] &= ~(uint64_t{1} << cluster % 64);
    }
  }
  bool contains(uint64_t cluster) const {
    const auto page = pages_.find(cluster / kPage);
    return page != pages_.end() && (page->second[cluster % kPage / 64] >> cluster % 64 & 1) != 0;
  }

 private:
  static constexpr uint64_t kPage = 4096;
  std::unordered_map<uint64_t, std::array<uint64_t, kPage / 64>> pages_;
};

}  // namespace spindle::qcow2
