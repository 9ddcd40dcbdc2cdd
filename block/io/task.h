// Task<T>: a lazily started coroutine that is awaited exactly once, and spawn(), which lets one run by
// itself.
//
// A request lives in its coroutine frames, so two things matter here:
//
// - Frames come from a per-thread pool (frame_pool.h). A request over five layers allocates nothing in steady
// state.
// - Awaiting a task starts it on the caller's stack and goes on at once if it finished without suspending.
// Only a task
//   that really suspended resumes its awaiter later, from its last suspension point. So a loop that awaits a
//   million tasks which complete synchronously uses no stack, in every build: g++ turns symmetric transfer
//   into a tail call only with optimisation, and never under the sanitizers.
//
// Threading: a task is started, resumed and destroyed on one thread, its reactor's. Nothing here is locked.
#pragma once

#include <cassert>
#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "block/io/frame_pool.h"

namespace spindle {

template <typename T = void>
class [[nodiscard]] Task;

namespace detail {

struct PromiseBase {
  std::coroutine_handle<> awaiter = nullptr;  // null while the task runs inside its awaiter's await_suspend

  static void* operator new(std::size_t size) { return FramePool::allocate(size); }
  static void operator delete(void* frame, std::size_t size) { FramePool::release(frame, size); }

  std::suspend_always initial_suspend() noexcept { return {}; }

  struct Final {
    bool await_ready() noexcept { return false; }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> self) noexcept {
      auto awaiter = self.promise().awaiter;
      return awaiter ? awaiter : std::noop_coroutine();
    }
    void await_resume() noexcept {}
  };
  Final final_suspend() noexcept { return {}; }

  // The I/O path throws nothing; what does escape (out of memory) has no request to be reported to.
  [[noreturn]] void unhandled_exception() noexcept { std::terminate(); }
};

template <typename T>
struct Promise : PromiseBase {
  std::optional<T> value;
  Task<T> get_return_object() noexcept;
  template <typename U>
  requires std::is_constructible_v<T, U&&>
  void return_value(U&& result) { value.emplace(std::forward<U>(result)); }
  T take() {
    assert(value.has_value());
    return std::move(*value);
  }
};

template <>
struct Promise<void> : PromiseBase {
  Task<void> get_return_object() noexcept;
  void return_void() noexcept {}
  void take() noexcept {}
};

}  // namespace detail

template <typename T>
class [[nodiscard]] Task {
 public:
  using promise_type = detail::Promise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  explicit Task(Handle handle) noexcept : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  Task(const Task&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> awaiter) {
    handle_.resume();
    if (handle_.done()) return false;
    handle_.promise().awaiter = awaiter;
    return true;
  }
  T await_resume() { return handle_.promise().take(); }

 private:
  Handle handle_;
};

namespace detail {
template <typename T>
Task<T> Promise<T>::get_return_object() noexcept {
  return Task<T>(std::coroutine_handle<Promise<T>>::from_promise(*this));
}
inline Task<void> Promise<void>::get_return_object() noexcept {
  return Task<void>(std::coroutine_handle<Promise<void>>::from_promise(*this));
}
}  // namespace detail

/// A task that ends at once with `value`: for functions that hand on a task and have found nothing to hand
/// on.
template <typename T>
Task<T> finished(T value) {
  co_return value;
}

/// The return type of a coroutine that nobody awaits: it starts at the call and frees its frame when it ends.
/// Whoever starts one must know when it ended before destroying what it uses (see Disk::drain, or a counter
/// of one's own).
struct Detached {
  struct promise_type {
    static void* operator new(std::size_t size) { return FramePool::allocate(size); }
    static void operator delete(void* frame, std::size_t size) { FramePool::release(frame, size); }
    Detached get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    [[noreturn]] void unhandled_exception() noexcept { std::terminate(); }
  };
};

/// Starts `task` now and lets it run to its end; `done(value)` (or `done()` for void) is called on the same
/// thread.
template <typename T, typename Done>
Detached spawn(Task<T> task, Done done) {
  if constexpr (std::is_void_v<T>) {
    co_await task;
    done();
  } else {
    done(co_await task);
  }
}
inline Detached spawn(Task<void> task) {
  co_await task;
}

}  // namespace spindle
