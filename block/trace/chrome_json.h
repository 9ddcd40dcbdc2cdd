// ChromeJson: a trace as text, in the JSON Array Format of Chrome's trace events, which Perfetto reads too.
//
//   [
//   {"ph":"M","name":"process_name","pid":2,"args":{"name":"disk virtio0"}},
//   {"ph":"b","cat":"request","id":"0x1000000000001","name":"write","pid":2,"tid":1,"ts":1.250,"args":{...}},
//   ...
//   ]
//
// One event a line. The array's end may be missing, and both readers are content: so what is left by a
// process that was killed can be read.
//
// - A track is a process, the machine is process 1. Threads have the numbers of their rings.
// - Spans are nestable asynchronous events ("b" and "e") under the request's id; marks are instants ("i").
// - Times are microseconds since the trace began. What began before is shown from there on.
// - Every "b" has its "e": an end is written only for what has begun, what lies within it ends with it, and
// finish() ends all that is left. So whatever was lost, begins and ends match.
//
// It holds the spans that have not ended, of at most kMostOpen requests.
//
// Threading: none of its own.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "block/trace/ring.h"

namespace spindle::trace {

class ChromeJson {
 public:
  static constexpr std::size_t kMostOpen = 1 << 16;

  /// `start`: the trace's first moment, as now() has it. `unix_seconds` the same for people.
  ChromeJson(uint64_t start, int64_t unix_seconds);

  /// Appends to text() what became of a record of `ring`.
  void add(const Ring& ring, const Record& record);
  /// `count` records of `ring` were lost about now.
  void add_lost(const Ring& ring, uint64_t time, uint64_t count);
  /// The end of the array, and of all that has not ended.
  void finish(uint64_t time);

  /// What was appended and not taken yet.
  std::string& text() { return text_; }
  /// Requests that have not ended.
  std::size_t open() const { return open_.size(); }
  /// Begins that found too many requests open.
  uint64_t refused() const { return refused_; }
  uint64_t events() const { return events_; }

 private:
  void begin_event(char phase, unsigned process, unsigned thread, const char* name, uint64_t time);
  void begin_span_event(char phase, Id request, unsigned thread, const char* name, uint64_t time);
  void announce(unsigned process, const Ring& ring);
  void metadata(const char* name, unsigned process, unsigned thread, const std::string& value);
  void end_span(Id request, unsigned thread, const char* name, uint64_t time, const char* outcome,
                const char* why);

  struct Open {
    std::vector<const char*> names;
    unsigned thread;
  };

  uint64_t start_;
  std::string text_;
  uint64_t events_ = 0;
  uint64_t refused_ = 0;
  std::set<std::pair<unsigned, unsigned>> announced_;  // process and thread; thread 0: the process itself
  std::unordered_map<Id, Open> open_;
};

}  // namespace spindle::trace
