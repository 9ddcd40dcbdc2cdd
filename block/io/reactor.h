// Reactor: a thread's event loop over one io_uring. A Disk and its graph of nodes live on exactly one.
//
// One turn of the loop: run what other threads posted and what became ready; run the end-of-batch hooks (a
// device publishes its completions and decides once about an interrupt); submit everything queued to the
// kernel in one system call, waiting only if there is nothing else to do; resume whoever a completion belongs
// to.
//
// Threading: everything is for the loop's own thread except post(), stop() and the constructor. In tests and
// tools a reactor may run on the calling thread (run_until), in `spindle run` it has a thread of its own
// (ReactorThread).
#pragma once

#include <liburing.h>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "block/io/task.h"
#include "block/result.h"

namespace spindle {

class Reactor {
 public:
  /// Called at the end of each batch it was armed for. Embedded in its owner: arming allocates nothing.
  class BatchHook {
   public:
    virtual void end_of_batch() = 0;

   protected:
    ~BatchHook() = default;

   private:
    friend class Reactor;
    bool armed_ = false;
  };

  /// `entries`: size of the submission queue. Fails if the kernel has no io_uring or forbids it.
  static Result<std::unique_ptr<Reactor>> create(unsigned entries = 256);
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // ---- from any thread ----

  /// Runs `work` on the loop's thread, in the order posted. Wakes the loop.
  void post(std::function<void()> work);
  /// Ends run() after the current turn. Work posted before it has run by then.
  void stop();

  // ---- from the loop's thread (or while no loop runs) ----

  void run();
  /// Turns the loop until `done()` holds. For tests, tools and start-up.
  void run_until(const std::function<bool()>& done);
  /// Runs `task` to its end on the calling thread, which must not be inside the loop.
  template <typename T>
  T wait(Task<T> task);

  /// Calls `hook.end_of_batch()` once at the end of this batch, however often it is armed.
  void arm(BatchHook& hook);
  /// Forgets an armed hook whose owner goes away.
  void disarm(BatchHook& hook);

  /// Resumes `handle` in the next turn. For fairness and to cut recursion.
  void schedule(std::coroutine_handle<> handle) { ready_.push_back(handle); }
  /// co_await reactor.yield(): lets everything else that is ready run first.
  auto yield() {
    struct Yield {
      Reactor& reactor;
      bool await_ready() noexcept { return false; }
      void await_suspend(std::coroutine_handle<> handle) { reactor.schedule(handle); }
      void await_resume() noexcept {}
    };
    return Yield{*this};
  }

  /// Where a completion of the ring is delivered. Lives until `complete` was called.
  struct Completion {
    virtual void complete(int result, unsigned flags) = 0;

   protected:
    ~Completion() = default;
  };

  /// co_await reactor.submit([&](io_uring_sqe* sqe) { io_uring_prep_read(sqe, ...); }) gives the operation's
  /// result:
  /// >= 0, or -errno. Buffers must live until it returns.
  template <typename Prepare>
  auto submit(Prepare prepare) {
    struct Operation final : Completion {
      Reactor& reactor;
      Prepare prepare;
      int result = 0;
      std::coroutine_handle<> waiter;
      Operation(Reactor& r, Prepare p) : reactor(r), prepare(std::move(p)) {}
      bool await_ready() noexcept { return false; }
      void await_suspend(std::coroutine_handle<> handle) {
        waiter = handle;
        io_uring_sqe* sqe = reactor.next_sqe();
        prepare(sqe);
        io_uring_sqe_set_data(sqe, static_cast<Completion*>(this));
        ++reactor.in_flight_;
      }
      int await_resume() noexcept { return result; }
      void complete(int value, unsigned) override {
        result = value;
        waiter.resume();
      }
    };
    return Operation(*this, std::move(prepare));
  }

  /// co_await reactor.sleep(duration). Not exact; never early.
  Task<void> sleep(std::chrono::nanoseconds duration);

  /// A deadline that can be moved or taken back, unlike a sleep. Calls its handler once for each set(), on
  /// the loop. Goes away before the reactor does, on its thread or while nothing is pending.
  class Timer {
   public:
    Timer(Reactor& reactor, std::function<void()> handler);
    ~Timer() { clear(); }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

    /// After `duration`, never earlier; replaces what was set.
    void set(std::chrono::nanoseconds duration);
    void clear();
    bool pending() const { return shot_ != nullptr; }

   private:
    friend class Reactor;
    struct Shot;
    Reactor& reactor_;
    std::function<void()> handler_;
    Shot* shot_ = nullptr;
  };

  /// Calls `handler` on the loop each time the eventfd `fd` was signalled (its counter is read and reset
  /// first). The caller keeps `fd` open until unwatch() has returned.
  void watch(int fd, std::function<void()> handler);
  void unwatch(int fd);

  /// Registers an open file with the ring: operations that name the returned slot with IOSQE_FIXED_FILE spare
  /// the kernel a look-up each. -1 if there is no slot left or the kernel cannot; then use the descriptor.
  /// The ring holds the file open, with its locks, until unregister_file(); close() alone does not let go of
  /// it.
  int register_file(int fd);
  void unregister_file(int slot);

  bool on_thread() const { return thread_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  uint64_t operations_in_flight() const { return in_flight_; }

 private:
  struct Watch;
  friend struct Timer::Shot;
  explicit Reactor(int wake_fd);
  void run_batch();
  void submit(bool wait);
  bool kernel_has_work() const;
  void run_posted();
  void take_completions();
  void reap();
  io_uring_sqe* next_sqe() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    return sqe ? sqe : make_room();
  }
  io_uring_sqe* make_room();
  void start_watch(Watch& watch);

  io_uring ring_{};
  int wake_fd_;
  bool ring_ready_ = false;
  std::atomic<std::thread::id> thread_{};
  std::vector<std::coroutine_handle<>> ready_;
  std::vector<std::coroutine_handle<>> running_;
  std::vector<BatchHook*> hooks_;
  std::vector<BatchHook*> hooks_running_;
  std::vector<std::unique_ptr<Watch>> watches_;
  std::vector<std::unique_ptr<Timer::Shot>> shots_;
  struct Taken {
    Completion* completion;
    int result;
    unsigned flags;
  };
  std::vector<Taken> taken_;  // off the ring, not yet delivered
  uint64_t in_flight_ = 0;
  std::vector<bool> file_slots_;  // which are taken
  std::atomic<bool> stop_{false};
  std::mutex posted_mutex_;
  std::vector<std::function<void()>> posted_;
  std::vector<std::function<void()>> posted_running_;
  std::atomic<bool> posted_any_{false};
  std::atomic<bool> waiting_{false};  // the loop waits in the kernel, or is about to
};

template <typename T>
T Reactor::wait(Task<T> task) {
  if constexpr (std::is_void_v<T>) {
    bool done = false;
    spawn(std::move(task), [&] { done = true; });
    run_until([&] { return done; });
  } else {
    std::optional<T> value;
    spawn(std::move(task), [&](T result) { value.emplace(std::move(result)); });
    run_until([&] { return value.has_value(); });
    return std::move(*value);
  }
}

/// A reactor with a thread of its own. The destructor stops and joins it.
class ReactorThread {
 public:
  static Result<std::unique_ptr<ReactorThread>> start(std::string name);
  ~ReactorThread();
  Reactor& reactor() { return *reactor_; }
  /// Runs `make()`'s task on the reactor and waits for it on the calling thread, which must be another one.
  template <typename Make>
  auto call(Make make);

 private:
  ReactorThread() = default;
  std::unique_ptr<Reactor> reactor_;
  std::thread thread_;
};

}  // namespace spindle

#include "block/io/reactor_call.h"
