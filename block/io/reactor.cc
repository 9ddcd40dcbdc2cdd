#include "block/io/reactor.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "block/trace/trace.h"

namespace spindle {

// An eventfd under watch: a poll that is armed again after each signal. It stays allocated until the poll's
// completion was reaped, even when unwatch() came first.
struct Reactor::Watch final : Reactor::Completion {
  Reactor& reactor;
  int fd;
  std::function<void()> handler;
  bool dead = false;

  Watch(Reactor& r, int f, std::function<void()> h) : reactor(r), fd(f), handler(std::move(h)) {}

  void complete(int result, unsigned) override {
    if (!dead && result >= 0) {
      uint64_t count;
      if (::read(fd, &count, sizeof count) == sizeof count) handler();
    }
    if (!dead) {
      reactor.start_watch(*this);
      return;
    }
    std::erase_if(reactor.watches_, [this](const auto& watch) { return watch.get() == this; });
  }
};

// One setting of a timer. It stays allocated until the kernel has answered, even when it was taken back.
struct Reactor::Timer::Shot final : Reactor::Completion {
  Reactor& reactor;
  Timer* timer;  // null: taken back
  __kernel_timespec after{};

  Shot(Reactor& r, Timer* t) : reactor(r), timer(t) {}

  void complete(int, unsigned) override {
    Timer* const due = timer;
    std::erase_if(reactor.shots_, [this](const auto& shot) { return shot.get() == this; });
    if (!due) return;
    due->shot_ = nullptr;
    due->handler_();
  }
};

Result<std::unique_ptr<Reactor>> Reactor::create(unsigned entries) {
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) return std::unexpected(Error::from_errno(errno, "eventfd", ""));
  auto reactor = std::unique_ptr<Reactor>(new Reactor(wake_fd));

  io_uring_params params{};
  params.flags = IORING_SETUP_CQSIZE | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  params.cq_entries = entries * 8;
  int rc = io_uring_queue_init_params(entries, &reactor->ring_, &params);
  if (rc == -EINVAL) {  // before Linux 5.19
    params = {};
    params.flags = IORING_SETUP_CQSIZE;
    params.cq_entries = entries * 8;
    rc = io_uring_queue_init_params(entries, &reactor->ring_, &params);
  }
  if (rc < 0) {
    Error error = Error::from_errno(-rc, "io_uring_setup", "");
    if (rc == -EPERM || rc == -ENOSYS) {
      error.detail =
          "the kernel does not allow io_uring (see sysctl kernel.io_uring_disabled, or the container's "
          "seccomp rules)";
    }
    return std::unexpected(std::move(error));
  }
  reactor->ring_ready_ = true;
  constexpr unsigned kFileSlots = 256;
  if (io_uring_register_files_sparse(&reactor->ring_, kFileSlots) == 0)
    reactor->file_slots_.resize(kFileSlots);
  reactor->watch(wake_fd, [] {});  // waking is enough: a turn runs what was posted
  return reactor;
}

Reactor::Reactor(int wake_fd) : wake_fd_(wake_fd) {}

Reactor::~Reactor() {
  if (ring_ready_) io_uring_queue_exit(&ring_);
  ::close(wake_fd_);
}

void Reactor::post(std::function<void()> work) {
  bool wake;
  {
    std::lock_guard lock(posted_mutex_);
    posted_.push_back(std::move(work));
    wake = !posted_any_.exchange(true);
  }
  // A loop that is awake looks at posted_any_ once more after it has said that it is going to wait, so one of
  // the two sees the other; the system call is for one that waits.
  if (wake && waiting_) {
    const uint64_t one = 1;
    // The counter cannot overflow: it is reset at each wake and written once per wake.
    [[maybe_unused]] const auto written = ::write(wake_fd_, &one, sizeof one);
  }
}

void Reactor::stop() {
  post([this] { stop_ = true; });
}

void Reactor::run() {
  stop_ = false;
  run_until([this] { return stop_.load(); });
}

void Reactor::run_until(const std::function<bool()>& done) {
  const auto before = thread_.exchange(std::this_thread::get_id());
  while (!done()) {
    run_batch();
    bool wait = ready_.empty() && hooks_.empty() && !done();
    if (wait) {
      waiting_ = true;
      wait = !posted_any_;
    }
    submit(wait);
    waiting_ = false;
    reap();
  }
  thread_ = before;
}

void Reactor::run_batch() {
  if (posted_any_) run_posted();
  running_.swap(ready_);
  for (auto handle : running_) {
    trace::forget();
    handle.resume();
  }
  running_.clear();
  hooks_running_.swap(hooks_);
  for (std::size_t i = 0; i < hooks_running_.size(); ++i) {
    BatchHook* hook = hooks_running_[i];
    if (!hook) continue;  // disarmed meanwhile
    hook->armed_ = false;
    hook->end_of_batch();
  }
  hooks_running_.clear();
}

// Completions that did not fit the ring, or (where the kernel announces it) work that runs when it is
// entered.
bool Reactor::kernel_has_work() const {
  if (!(ring_.flags & IORING_SETUP_TASKRUN_FLAG)) return true;
  return (IO_URING_READ_ONCE(*ring_.sq.kflags) & (IORING_SQ_CQ_OVERFLOW | IORING_SQ_TASKRUN)) != 0;
}

void Reactor::submit(bool wait) {
  // With nothing to hand over and nothing to wait for, the kernel is only asked if it says that completions
  // are to be had by asking.
  if (!wait && io_uring_sq_ready(&ring_) == 0 && !kernel_has_work()) return;
  const int rc = wait ? io_uring_submit_and_wait(&ring_, 1) : io_uring_submit_and_get_events(&ring_);
  // EBUSY and EAGAIN mean that completions must be reaped before more can be taken; what was queued stays
  // queued.
  if (rc < 0 && rc != -EINTR && rc != -EBUSY && rc != -EAGAIN && rc != -ETIME) {
    std::fprintf(stderr, "spindle: io_uring_enter: %s\n", std::strerror(-rc));
    std::abort();
  }
}

void Reactor::run_posted() {
  {
    std::lock_guard lock(posted_mutex_);
    posted_running_.swap(posted_);
    posted_any_ = false;
  }
  for (auto& item : posted_running_) item();
  posted_running_.clear();
}

void Reactor::take_completions() {
  constexpr unsigned kGroup = 64;
  io_uring_cqe* cqes[kGroup];
  while (const unsigned count = io_uring_peek_batch_cqe(&ring_, cqes, kGroup)) {
    for (unsigned i = 0; i < count; ++i) {
      if (auto* completion = static_cast<Completion*>(io_uring_cqe_get_data(cqes[i]))) {
        taken_.push_back({completion, cqes[i]->res, cqes[i]->flags});
      }  // else it is a cancellation's own
    }
    io_uring_cq_advance(&ring_, count);
  }
}

// Completions leave the ring before any coroutine runs: a resumed one may queue new operations, and when the
// submission queue is full make_room() may have to make room on both sides.
void Reactor::reap() {
  take_completions();
  for (std::size_t next = 0; next < taken_.size(); ++next) {
    const Taken done = taken_[next];
    --in_flight_;
    trace::forget();
    done.completion->complete(done.result, done.flags);
  }
  taken_.clear();
}

// The submission queue is full: hands it over until there is room.
io_uring_sqe* Reactor::make_room() {
  for (;;) {
    const int rc = io_uring_submit(&ring_);
    if (rc == -EBUSY || rc == -EAGAIN)
      take_completions();  // the kernel takes no more before they are off the ring
    if (rc < 0 && rc != -EINTR && rc != -EBUSY && rc != -EAGAIN) {
      std::fprintf(stderr, "spindle: io_uring_submit: %s\n", std::strerror(-rc));
      std::abort();
    }
    if (io_uring_sqe* sqe = io_uring_get_sqe(&ring_)) return sqe;
  }
}

void Reactor::arm(BatchHook& hook) {
  if (hook.armed_) return;
  hook.armed_ = true;
  hooks_.push_back(&hook);
}

void Reactor::disarm(BatchHook& hook) {
  hook.armed_ = false;
  std::erase(hooks_, &hook);
  std::replace(hooks_running_.begin(), hooks_running_.end(), &hook, static_cast<BatchHook*>(nullptr));
}

Task<void> Reactor::sleep(std::chrono::nanoseconds duration) {
  __kernel_timespec spec{};
  spec.tv_sec = duration.count() / 1'000'000'000;
  spec.tv_nsec = duration.count() % 1'000'000'000;
  co_await submit([&spec](io_uring_sqe* sqe) { io_uring_prep_timeout(sqe, &spec, 0, 0); });
}

Reactor::Timer::Timer(Reactor& reactor, std::function<void()> handler)
    : reactor_(reactor), handler_(std::move(handler)) {}

void Reactor::Timer::set(std::chrono::nanoseconds duration) {
  clear();
  shot_ = reactor_.shots_.emplace_back(std::make_unique<Shot>(reactor_, this)).get();
  const int64_t nanoseconds = std::max<int64_t>(duration.count(), 0);
  shot_->after.tv_sec = nanoseconds / 1'000'000'000;
  shot_->after.tv_nsec = nanoseconds % 1'000'000'000;
  io_uring_sqe* sqe = reactor_.next_sqe();
  io_uring_prep_timeout(sqe, &shot_->after, 0, 0);
  io_uring_sqe_set_data(sqe, static_cast<Completion*>(shot_));
  ++reactor_.in_flight_;
}

void Reactor::Timer::clear() {
  if (!shot_) return;
  shot_->timer = nullptr;
  io_uring_sqe* sqe = reactor_.next_sqe();
  io_uring_prep_timeout_remove(sqe, reinterpret_cast<uint64_t>(static_cast<Completion*>(shot_)), 0);
  io_uring_sqe_set_data(sqe, nullptr);
  shot_ = nullptr;
}

void Reactor::start_watch(Watch& watch) {
  io_uring_sqe* sqe = next_sqe();
  io_uring_prep_poll_add(sqe, watch.fd, POLLIN);
  io_uring_sqe_set_data(sqe, static_cast<Completion*>(&watch));
  ++in_flight_;
}

void Reactor::watch(int fd, std::function<void()> handler) {
  watches_.push_back(std::make_unique<Watch>(*this, fd, std::move(handler)));
  start_watch(*watches_.back());
}

void Reactor::unwatch(int fd) {
  for (auto& watch : watches_) {
    if (watch->fd != fd || watch->dead) continue;
    watch->dead = true;
    io_uring_sqe* sqe = next_sqe();
    io_uring_prep_poll_remove(sqe, reinterpret_cast<uint64_t>(static_cast<Completion*>(watch.get())));
    io_uring_sqe_set_data(sqe, nullptr);
  }
}

int Reactor::register_file(int fd) {
  const auto free_slot = std::find(file_slots_.begin(), file_slots_.end(), false);
  if (free_slot == file_slots_.end()) return -1;
  const auto slot = static_cast<unsigned>(free_slot - file_slots_.begin());
  if (io_uring_register_files_update(&ring_, slot, &fd, 1) != 1) return -1;
  *free_slot = true;
  return static_cast<int>(slot);
}

void Reactor::unregister_file(int slot) {
  int none = -1;
  io_uring_register_files_update(&ring_, static_cast<unsigned>(slot), &none, 1);
  file_slots_[static_cast<std::size_t>(slot)] = false;
}

Result<std::unique_ptr<ReactorThread>> ReactorThread::start(std::string name) {
  auto result = std::unique_ptr<ReactorThread>(new ReactorThread);
  auto reactor = Reactor::create();
  if (!reactor) return std::unexpected(std::move(reactor.error()));
  result->reactor_ = std::move(*reactor);
  result->thread_ = std::thread([loop = result->reactor_.get()] { loop->run(); });
  pthread_setname_np(result->thread_.native_handle(), name.substr(0, 15).c_str());
  return result;
}

ReactorThread::~ReactorThread() {
  reactor_->stop();
  thread_.join();
}

}  // namespace spindle
