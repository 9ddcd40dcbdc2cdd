// Progress of a long job: on standard output as `-p` asks for it, and on standard error whenever the process
// gets SIGUSR1, in the words of qemu-img.
//
// Threading: the thread that works. The signal handler only sets a flag.
#pragma once

#include <cstdint>

namespace spindle::image {

class Progress {
 public:
  /// Takes SIGUSR1 for this process. `shown`: print it as it goes.
  explicit Progress(bool shown);
  /// Ends the line, if one was begun.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` of `total` bytes are. Prints if there is something new to say, or if SIGUSR1 came.
  void set(uint64_t done, uint64_t total);

 private:
  void print(double percent);

  bool shown_;
  double last_ = -1;
};

/// A job of several parts, which add to one progress.
class JobProgress {
 public:
  /// `total`: the bytes of all parts.
  JobProgress(Progress& progress, uint64_t total) : progress_(progress), total_(total) {}
  void add(uint64_t bytes) { progress_.set(done_ += bytes, total_); }
  void finish() { progress_.set(1, 1); }

 private:
  Progress& progress_;
  uint64_t total_;
  uint64_t done_ = 0;
};

}  // namespace spindle::image
