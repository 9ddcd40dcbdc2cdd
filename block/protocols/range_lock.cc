#include "block/protocols/range_lock.h"

namespace spindle {

bool RangeLock::Hold::blocked() const {
  for (const Hold* other = earlier_; other; other = other->earlier_) {
    if (mode_ == Mode::Shared && other->mode_ == Mode::Shared) continue;
    if (begin_ < other->end_ && other->begin_ < end_) return true;
  }
  return false;
}

// Woken entries are no longer waiting at once, but go on through the reactor, since wake() runs in the middle
// of somebody's return.
void RangeLock::wake() {
  for (Hold* hold = first_; hold; hold = hold->later_) {
    if (!hold->waiter_ || hold->blocked()) continue;
    reactor_.schedule(std::exchange(hold->waiter_, nullptr));
    --waiting_;
  }
}

}  // namespace spindle
