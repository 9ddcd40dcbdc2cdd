// BusyClusters: guest clusters whose mapping is being changed by somebody who waits in between, as for a
// copy. Whoever wants to change one of them as well waits, and then looks at the mapping again.
//
// Threading: the node's reactor only.
#pragma once

#include <coroutine>
#include <cstdint>
#include <map>
#include <vector>

#include "block/io/reactor.h"

namespace spindle::qcow2 {

class BusyClusters {
 public:
  explicit BusyClusters(Reactor& reactor) : reactor_(reactor) {}

  /// The first busy run's distance: how many clusters from `first` on, of `count`, are not busy.
  uint64_t free_from(uint64_t first, uint64_t count) const {
    if (runs_.empty()) [[likely]]
      return count;
    auto next = runs_.upper_bound(first);
    if (next != runs_.begin() && first < std::prev(next)->second.end) return 0;
    return next == runs_.end() ? count : std::min(count, next->first - first);
  }

  /// [first, first + count), none of it busy, is until this goes away.
  class Hold {
   public:
    Hold(BusyClusters& all, uint64_t first, uint64_t count) : all_(all), first_(first) {
      all_.runs_[first].end = first + count;
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() {
      const auto run = all_.runs_.find(first_);
      for (const auto waiter : run->second.waiters) all_.reactor_.schedule(waiter);
      all_.runs_.erase(run);
    }

   private:
    BusyClusters& all_;
    uint64_t first_;
  };

  /// co_await until whoever holds `cluster`, which is busy, lets go.
  auto wait(uint64_t cluster) {
    struct Wait {
      std::vector<std::coroutine_handle<>>& waiters;
      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<> handle) { waiters.push_back(handle); }
      void await_resume() const noexcept {}
    };
    return Wait{std::prev(runs_.upper_bound(cluster))->second.waiters};
  }

 private:
  struct Run {
    uint64_t end = 0;
    std::vector<std::coroutine_handle<>> waiters;
  };
  Reactor& reactor_;
  std::map<uint64_t, Run> runs_;  // by their first cluster
};

}  // namespace spindle::qcow2
