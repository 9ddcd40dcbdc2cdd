#include "block/trace/ring.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace spindle::trace {
namespace {

struct Names {
  std::mutex mutex;
  std::map<uint16_t, std::string> of_track;
  std::vector<uint16_t> gone;  // tracks that have ended while their names are kept
  uint16_t last = 0;
  bool keep = false;
};

// Never destroyed: threads, and disks with static lifetime, may end after main() has.
Names& names() {
  static Names& all = *new Names;
  return all;
}

struct Rings {
  std::mutex mutex;
  std::vector<std::shared_ptr<Ring>> all;
  unsigned last = 0;
};

Rings& rings() {
  static Rings& all = *new Rings;
  return all;
}

// The thread's own ring, from its first record to its end.
class Owned {
 public:
  ~Owned() {
    if (ring_) ring_->thread_ended();
  }
  Ring* get() {
    if (!ring_) make();
    return ring_.get();
  }

 private:
  void make() {
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof name);
    const std::lock_guard lock(rings().mutex);
    ring_ = std::make_shared<Ring>(++rings().last, name);
    rings().all.push_back(ring_);
  }

  std::shared_ptr<Ring> ring_;
};
thread_local Owned owned;

void push(const Record& record) {
  owned.get()->push(record);
}

}  // namespace

void each_ring(const std::function<void(Ring&)>& visit) {
  std::vector<std::shared_ptr<Ring>> all;
  {
    const std::lock_guard lock(rings().mutex);
    all = rings().all;
  }
  std::vector<std::shared_ptr<Ring>> done;
  for (const auto& ring : all) {
    const bool ended = ring->thread_has_ended();  // before it is read: nothing comes after
    visit(*ring);
    if (ended) done.push_back(ring);
  }
  if (done.empty()) return;
  const std::lock_guard lock(rings().mutex);
  std::erase_if(rings().all,
                [&done](const auto& ring) { return std::ranges::find(done, ring) != done.end(); });
}

std::string track_name(uint16_t number) {
  const std::lock_guard lock(names().mutex);
  const auto found = names().of_track.find(number);
  return found == names().of_track.end() ? std::string() : found->second;
}

void keep_track_names(bool keep) {
  const std::lock_guard lock(names().mutex);
  names().keep = keep;
  if (keep) return;
  for (const uint16_t number : std::exchange(names().gone, {})) names().of_track.erase(number);
}

uint64_t now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

Track::Track(std::string name) {
  const std::lock_guard lock(names().mutex);
  // Numbers come around after 65,535 disks; 0 is the machine's.
  do {
    number_ = ++names().last;
  } while (number_ == 0 || names().of_track.contains(number_));
  names().of_track.emplace(number_, std::move(name));
}

Track::~Track() {
  const std::lock_guard lock(names().mutex);
  if (names().keep) {
    names().gone.push_back(number_);
  } else {
    names().of_track.erase(number_);
  }
}

Id Track::new_request() const {
  static std::atomic<Id> last{0};
  constexpr Id kNumbers = (Id{1} << kTrackShift) - 1;
  return id() | ((last.fetch_add(1, std::memory_order_relaxed) + 1) & kNumbers);
}

void detail::begin_at(uint64_t time, Id request, const char* name, Range range, const char* reason) {
  if (!on()) return;
  push({.time = time,
        .request = request,
        .name = name,
        .word = reason,
        .offset = range.offset,
        .length = range.length,
        .kind = Record::Kind::Begin});
}

void detail::end(Id request, const char* name, const char* outcome, const char* why) {
  if (!on()) return;
  push({.time = now(),
        .request = request,
        .name = name,
        .word = outcome,
        .why = why,
        .kind = Record::Kind::End});
}

void detail::mark(Id track, const char* name, const char* reason) {
  push({.time = now(), .request = track, .name = name, .word = reason, .kind = Record::Kind::Mark});
}

const char* outcome_of(const Result<>& result) {
  if (result) return "ok";
  const char* name = result.error()->number != 0 ? strerrorname_np(result.error()->number) : nullptr;
  return name ? name : to_string(result.error()->kind).data();
}

}  // namespace spindle::trace
