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

}  // namespace spindle::image
