// SerialTasks: asynchronous work handed to a reactor from any thread, done one piece at a time, in the order
// in which it was handed over.
//
// What a driver does to a device (features, start, configuration, reset) comes from vCPU threads and must
// take effect in that order although each step may wait for a disk. This is the queue in between.
//
// Threading: post() from any thread; the rest on the reactor. The owner awaits idle() before it goes away.
#pragma once

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "block/io/reactor.h"

namespace spindle::virtio {

class SerialTasks {
 public:
  explicit SerialTasks(Reactor& reactor) : reactor_(reactor) {}
  SerialTasks(const SerialTasks&) = delete;
  SerialTasks& operator=(const SerialTasks&) = delete;

  /// `make` starts the piece of work when its turn has come; it and what it captured live until the piece has
  /// ended.
  void post(std::function<Task<void>()> make) {
    outstanding_.fetch_add(1);
    reactor_.post([this, make = std::move(make)]() mutable {
      queue_.push_back(std::move(make));
      if (!running_) run();
    });
  }

  /// Returns when everything posted so far has ended.
  Task<void> idle() {
    struct Idle {
      SerialTasks& tasks;
      bool await_ready() const noexcept { return tasks.outstanding_.load() == 0; }
      void await_suspend(std::coroutine_handle<> handle) { tasks.waiters_.push_back(handle); }
      void await_resume() const noexcept {}
    };
    while (outstanding_.load() != 0) co_await Idle{*this};
  }

 private:
  Detached run() {
    running_ = true;
    while (!queue_.empty()) {
      const auto make = std::move(queue_.front());
      queue_.pop_front();
      co_await make();
      outstanding_.fetch_sub(1);
    }
    running_ = false;
    for (auto waiter : std::exchange(waiters_, {})) reactor_.schedule(waiter);
  }

  Reactor& reactor_;
  std::atomic<uint64_t> outstanding_{0};
  std::deque<std::function<Task<void>()>> queue_;
  bool running_ = false;
  std::vector<std::coroutine_handle<>> waiters_;
};

}  // namespace spindle::virtio
