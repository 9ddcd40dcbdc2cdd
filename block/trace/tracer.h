// Tracer: records a trace into a file, from start() to stop().
//
// It has a thread of its own, which looks into the rings a hundred times a second while a trace is recorded,
// and sleeps else. So nobody else ever waits for the file. What the file costs is bounded: the rings, and as
// much text as one look brings, written in pieces of kPiece bytes.
//
// A file that cannot be written to any more (disk full, its reader gone) ends the trace: that is told at
// once, and again by stop(). The guest does not notice.
//
// Threading: start(), stop() and status() from any thread, one after the other. One trace at a time in a
// process.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "block/result.h"

namespace spindle::trace {

class ChromeJson;

class Tracer {
 public:
  struct Options {
    /// Called first on the writing thread, to name and confine it.
    std::function<void()> at_start = {};
    /// Told, in one line, when a trace ended by itself. The writing thread.
    std::function<void(std::string)> complain = {};
  };
  struct Status {
    bool recording = false;
    std::string file;     ///< of this trace, or the last one; empty: there was none
    uint64_t events = 0;  ///< written
    uint64_t lost = 0;    ///< records that found no room
  };

  /// Starts the thread, which needs nothing of the kernel but to wait, write and close.
  explicit Tracer(Options options);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Opens `file` and records into it from now on. A file that exists is replaced if it is empty or a trace,
  /// and else refused: it may be somebody's disk.
  Result<> start(const std::string& file);
  /// Writes what has been recorded, and the end. Requests in flight end with the trace. Fails if the trace
  /// has failed, or none is recorded.
  Result<> stop();
  /// Nothing is recorded, and how the last trace ended was asked for (stop()).
  bool idle();
  Status status();

 private:
  enum class State : uint8_t { Idle, Recording, Stopping, Stopped, Failed, Ending };
  struct Session;

  void main();
  void record(std::unique_lock<std::mutex>& lock);
  Result<> look(Session& session);

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::Idle;
  std::unique_ptr<Session> session_;  // the writing thread's while Recording or Stopping
  Status status_;
  Result<> ended_;  // how the last trace did
  std::thread thread_;
};

}  // namespace spindle::trace
