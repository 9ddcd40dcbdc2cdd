#include <algorithm>
#include <coroutine>
#include <cstring>
#include <optional>
#include <vector>

#include "image/aligned_buffer.h"
#include "image/bench.h"

namespace spindle::image {
namespace {

class Run {
 public:
  Run(Disk& disk, const BenchOptions& options, std::byte* memory)
      : disk_(disk), options_(options), memory_(memory), offset_(options.offset) {}

  Task<Result<>> run() {
    const uint64_t workers = std::min(options_.depth, options_.count);
    working_ = workers;
    for (uint64_t i = 0; i < workers; ++i) {
      spawn(work(memory_ + i * options_.request), [this] {
        if (--working_ == 0 && ended_) ended_.resume();
      });
    }
    struct AllEnded {
      Run& all;
      bool await_ready() const noexcept { return all.working_ == 0; }
      void await_suspend(std::coroutine_handle<> handle) { all.ended_ = handle; }
      void await_resume() noexcept {}
    };
    AllEnded all_ended{*this};
    co_await all_ended;
    if (failure_) co_return std::unexpected(std::move(*failure_));
    co_return Result<>{};
  }

 private:
  struct NotDraining {
    Run& all;
    bool await_ready() const noexcept { return !all.draining_; }
    void await_suspend(std::coroutine_handle<> handle) { all.waiting_.push_back(handle); }
    void await_resume() noexcept {}
  };

  Task<void> work(std::byte* memory) {
    const iovec part{.iov_base = memory, .iov_len = options_.request};
    const Buffers buffers(std::span(&part, 1), options_.request);
    while (true) {
      while (draining_) {
        NotDraining not_draining{*this};
        co_await not_draining;
      }
      if (begun_ == options_.count || failure_) co_return;
      const uint64_t offset = next_offset();
      const bool flush_due =
          options_.flush_interval != 0 && (options_.count - begun_) % options_.flush_interval == 0;
      draining_ = flush_due && options_.drain;
      ++in_flight_;
      Result<> result;
      if (options_.write) {
        result = co_await disk_.write(offset, buffers);
      } else {
        result = co_await disk_.read(offset, buffers);
      }
      --in_flight_;
      if (!result) fail(std::move(result.error()));
      if (flush_due && !options_.drain) co_await flush();
      if (draining_ && in_flight_ == 0) co_await drained();
    }
  }

  uint64_t next_offset() {
    const uint64_t offset = offset_;
    const uint64_t step = options_.step == 0 ? options_.request : options_.step;
    // Neither is more than 63 bits long.
    offset_ = disk_.size() == 0 ? 0 : (offset_ + step) % disk_.size();
    ++begun_;
    return offset;
  }

  Task<void> flush() {
    if (failure_) co_return;
    auto result = co_await disk_.flush();
    if (!result) fail(std::move(result.error()));
  }

  Task<void> drained() {
    co_await flush();
    draining_ = false;
    for (const auto handle : waiting_) disk_.reactor().schedule(handle);
    waiting_.clear();
  }

  void fail(BoxedError error) {
    if (!failure_) failure_ = std::move(error);
  }

  Disk& disk_;
  const BenchOptions& options_;
  std::byte* memory_;
  uint64_t offset_;
  uint64_t begun_ = 0;
  uint64_t in_flight_ = 0;
  bool draining_ = false;
  std::vector<std::coroutine_handle<>> waiting_;
  uint64_t working_ = 0;
  std::coroutine_handle<> ended_ = nullptr;
  std::optional<BoxedError> failure_;
};

}  // namespace

Task<Result<std::chrono::nanoseconds>> run_bench(Disk& disk, BenchOptions options) {
  SPINDLE_CO_TRY(check_bench(options));
  auto memory = AlignedBuffer::allocate(options.request * options.depth);
  if (!memory) co_return std::unexpected(std::move(memory.error()));
  std::memset(memory->data(), options.pattern, memory->size());
  Run run(disk, options, memory->data());
  const auto start = std::chrono::steady_clock::now();
  auto running = run.run();
  auto result = co_await running;
  const auto end = std::chrono::steady_clock::now();
  if (!result) co_return std::unexpected(std::move(result.error()));
  co_return end - start;
}

}  // namespace spindle::image
