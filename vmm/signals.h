// SignalWatcher: the signals that mean something to a running machine, taken by a thread that does nothing
// else.
//
//   SIGTERM, SIGINT, SIGHUP  the first: `on_end` (stop, drain, flush, close); another, half
//                            a second or more later, ends the process at once, with
//                            status 128 + its number and the terminal restored, whatever hangs. Before
//                            start() nothing has been promised yet (images are being opened), so there the
//                            first does that
//   SIGUSR1                  `on_statistics`
//
// They are blocked in the whole process: create the watcher before any other thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "block/result.h"
#include "vmm/kvm.h"

namespace spindle::vmm {

class SignalWatcher {
 public:
  /// Blocks the signals and watches them.
  static Result<std::unique_ptr<SignalWatcher>> create();
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

  /// The machine runs. Both are called by the watcher's thread. `on_end` gets "SIGTERM".
  void start(std::function<void(std::string name)> on_end, std::function<void()> on_statistics);

 private:
  SignalWatcher(Fd signals, Fd stop) : signals_(std::move(signals)), stop_(std::move(stop)) {}
  void main();
  bool tell(unsigned number, bool ending);

  Fd signals_;
  Fd stop_;
  std::mutex mutex_;  // guards the two below
  std::function<void(std::string)> on_end_;
  std::function<void()> on_statistics_;
  std::thread thread_;
};

}  // namespace spindle::vmm
