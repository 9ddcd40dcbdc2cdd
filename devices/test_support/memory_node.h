// MemoryNode: a disk in memory for device tests, with hooks that hold operations in flight and make them
// fail.
//
// An operation is logged when it arrives, waits while its kind is held, fails if a failure covers it, and
// only then has its effect: a held write takes its data from the caller's buffers when it is released, as
// hardware would, so a caller that reuses buffers too early is seen.
//
// It also keeps what a power cut would leave: a write reaches durable() by FUA or by a flush that started
// after it had completed.
//
// Threading: the node's operations run on its reactor; every hook and question below may be called from any
// thread.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <coroutine>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "block/node.h"

namespace spindle::test {

class MemoryNode final : public Node {
 public:
  enum class Kind : uint8_t { Read, Write, Zeroes, Discard, Flush };
  struct Operation {
    Kind kind = Kind::Read;
    uint64_t offset = 0;
    uint64_t length = 0;
    bool fua = false;
    bool unmap = false;
    bool operator==(const Operation&) const = default;
  };

  MemoryNode(Reactor& reactor, uint64_t size) : Node(reactor), data_(size), durable_(size) {
    facts_.name = "memory";
    facts_.supports_fua = true;
    facts_.supports_zeroes = true;
    facts_.discard_granularity = 512;
    facts_.discard_zeroes = true;
  }

  /// For set-up, before a Disk is made of the node.
  NodeFacts& mutable_facts() { return facts_; }

  // ---- hooks: any thread ----

  /// Operations of `kind` that arrive from now on wait for release(kind).
  void hold(Kind kind) {
    std::lock_guard lock(mutex_);
    holding_[index(kind)] = true;
  }
  /// Lets the held operations of `kind` go on and holds no further ones.
  void release(Kind kind) {
    std::vector<std::coroutine_handle<>> held;
    {
      std::lock_guard lock(mutex_);
      holding_[index(kind)] = false;
      held.swap(held_[index(kind)]);
    }
    for (auto handle : held) reactor().post([handle] { handle.resume(); });
  }
  /// Lets the one that has waited longest go on, and holds the others and later ones. False if none waits.
  bool release_one(Kind kind) {
    std::coroutine_handle<> first;
    {
      std::lock_guard lock(mutex_);
      auto& held = held_[index(kind)];
      if (held.empty()) return false;
      first = held.front();
      held.erase(held.begin());
    }
    reactor().post([first] { first.resume(); });
    return true;
  }
  std::size_t held(Kind kind) const {
    std::lock_guard lock(mutex_);
    return held_[index(kind)].size();
  }
  /// Blocks until `count` operations of `kind` are held. Not on the reactor's thread.
  void wait_held(Kind kind, std::size_t count = 1) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_[index(kind)].size() >= count; });
  }
  /// Operations of `kind` that touch [offset, offset + length) fail, `times` times. Flushes ignore the range.
  void fail(Kind kind, uint64_t offset = 0, uint64_t length = UINT64_MAX, ErrorKind error = ErrorKind::Io,
            unsigned times = UINT32_MAX) {
    std::lock_guard lock(mutex_);
    failures_.push_back({kind, offset, length, error, times});
  }
  void heal() {
    std::lock_guard lock(mutex_);
    failures_.clear();
  }

  // ---- questions: any thread ----

  std::vector<Operation> log() const {
    std::lock_guard lock(mutex_);
    return log_;
  }
  void clear_log() {
    std::lock_guard lock(mutex_);
    log_.clear();
  }
  std::size_t count(Kind kind) const {
    std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(log_.begin(), log_.end(), [kind](const Operation& op) { return op.kind == kind; }));
  }
  /// What is readable, and what a power cut would leave.
  std::vector<uint8_t> bytes(uint64_t offset, uint64_t length) const { return copy(data_, offset, length); }
  std::vector<uint8_t> durable(uint64_t offset, uint64_t length) const {
    return copy(durable_, offset, length);
  }
  /// Fills the medium from outside; durable at once.
  void put(uint64_t offset, std::span<const uint8_t> bytes) {
    std::lock_guard lock(mutex_);
    std::copy(bytes.begin(), bytes.end(), data_.begin() + static_cast<std::ptrdiff_t>(offset));
    std::copy(bytes.begin(), bytes.end(), durable_.begin() + static_cast<std::ptrdiff_t>(offset));
  }

  // ---- Node ----

  const NodeFacts& facts() const override { return facts_; }
  uint64_t size() const override {
    std::lock_guard lock(mutex_);
    return data_.size();
  }

  Task<Result<>> read(uint64_t offset, Buffers buffers) override {
    const Operation operation{Kind::Read, offset, buffers.size};
    if (auto error = co_await admitted(operation)) co_return std::unexpected(std::move(*error));
    std::lock_guard lock(mutex_);
    const uint8_t* from = data_.data() + offset;
    for (const iovec& part : buffers.parts) {
      if (part.iov_len != 0) std::memcpy(part.iov_base, from, part.iov_len);
      from += part.iov_len;
    }
    co_return Result<>{};
  }

  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override {
    const Operation operation{Kind::Write, offset, buffers.size, flags.fua};
    if (auto error = co_await admitted(operation)) co_return std::unexpected(std::move(*error));
    std::lock_guard lock(mutex_);
    uint8_t* to = data_.data() + offset;
    for (const iovec& part : buffers.parts) {
      if (part.iov_len != 0) std::memcpy(to, part.iov_base, part.iov_len);
      to += part.iov_len;
    }
    changed_range(offset, buffers.size, flags.fua);
    co_return Result<>{};
  }

  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override {
    const Operation operation{Kind::Zeroes, offset, length, flags.fua, flags.unmap};
    if (auto error = co_await admitted(operation)) co_return std::unexpected(std::move(*error));
    std::lock_guard lock(mutex_);
    std::memset(data_.data() + offset, 0, length);
    changed_range(offset, length, flags.fua);
    co_return Result<>{};
  }

  Task<Result<>> discard(uint64_t offset, uint64_t length) override {
    const Operation operation{Kind::Discard, offset, length};
    if (auto error = co_await admitted(operation)) co_return std::unexpected(std::move(*error));
    std::lock_guard lock(mutex_);
    std::memset(data_.data() + offset, 0, length);
    changed_range(offset, length, false);
    co_return Result<>{};
  }

  Task<Result<>> flush() override {
    // What it covers is fixed before it waits: a write that completes meanwhile is not made durable by it.
    std::vector<std::pair<uint64_t, std::vector<uint8_t>>> covered;
    {
      std::lock_guard lock(mutex_);
      for (const auto& [offset, length] : dirty_) {
        const auto begin = data_.begin() + static_cast<std::ptrdiff_t>(offset);
        covered.emplace_back(offset,
                             std::vector<uint8_t>(begin, begin + static_cast<std::ptrdiff_t>(length)));
      }
    }
    const Operation operation{Kind::Flush};
    if (auto error = co_await admitted(operation)) co_return std::unexpected(std::move(*error));
    std::lock_guard lock(mutex_);
    for (const auto& [offset, bytes] : covered) {
      std::copy(bytes.begin(), bytes.end(), durable_.begin() + static_cast<std::ptrdiff_t>(offset));
    }
    dirty_.erase(dirty_.begin(), dirty_.begin() + static_cast<std::ptrdiff_t>(covered.size()));
    co_return Result<>{};
  }

  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override {
    SPINDLE_CO_TRY(check_range("map", offset, length));
    co_return Extent{.offset = offset, .length = length, .data = true};
  }
  Task<Result<>> resize(uint64_t size) override {
    std::lock_guard lock(mutex_);
    data_.resize(size);
    durable_.resize(size);
    co_return Result<>{};
  }
  Task<Result<>> close() override { co_return Result<>{}; }

 private:
  struct Failure {
    Kind kind;
    uint64_t offset;
    uint64_t length;
    ErrorKind error;
    unsigned times;
  };
  struct Gate {
    MemoryNode& node;
    Kind kind;
    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> handle) {
      std::lock_guard lock(node.mutex_);
      if (!node.holding_[index(kind)]) return false;
      node.held_[index(kind)].push_back(handle);
      node.changed_.notify_all();
      return true;
    }
    void await_resume() const noexcept {}
  };

  static constexpr std::size_t index(Kind kind) { return static_cast<std::size_t>(kind); }
  static constexpr const char* name(Kind kind) {
    constexpr const char* names[] = {"read", "write", "write_zeroes", "discard", "flush"};
    return names[index(kind)];
  }

  Task<std::optional<Error>> admitted(Operation operation) {
    {
      std::lock_guard lock(mutex_);
      log_.push_back(operation);
    }
    Gate gate{*this, operation.kind};
    co_await gate;
    if (auto inside = check_range(name(operation.kind), operation.offset, operation.length); !inside)
      co_return *inside.error();
    std::lock_guard lock(mutex_);
    for (Failure& failure : failures_) {
      if (failure.kind != operation.kind || failure.times == 0) continue;
      const bool before = operation.offset + operation.length <= failure.offset;
      const bool after =
          operation.offset >= failure.offset && operation.offset - failure.offset >= failure.length;
      if (operation.kind != Kind::Flush && (before || after)) continue;
      if (failure.times != UINT32_MAX) --failure.times;
      co_return std::optional<Error>(Error{.kind = failure.error,
                                           .number = failure.error == ErrorKind::NoSpace ? ENOSPC : EIO,
                                           .operation = name(operation.kind),
                                           .node = facts_.name,
                                           .offset = operation.offset});
    }
    co_return std::optional<Error>();
  }

  void changed_range(uint64_t offset, uint64_t length, bool durable_now) {
    if (!durable_now) {
      dirty_.emplace_back(offset, length);
      return;
    }
    const auto begin = static_cast<std::ptrdiff_t>(offset);
    std::copy(data_.begin() + begin, data_.begin() + begin + static_cast<std::ptrdiff_t>(length),
              durable_.begin() + begin);
  }

  std::vector<uint8_t> copy(const std::vector<uint8_t>& from, uint64_t offset, uint64_t length) const {
    std::lock_guard lock(mutex_);
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(offset);
    return {begin, begin + static_cast<std::ptrdiff_t>(length)};
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  NodeFacts facts_;
  std::vector<uint8_t> data_, durable_;
  std::vector<std::pair<uint64_t, uint64_t>> dirty_;  // completed, not yet covered by a successful flush
  std::vector<Operation> log_;
  std::vector<Failure> failures_;
  std::array<bool, 5> holding_{};
  std::array<std::vector<std::coroutine_handle<>>, 5> held_;
};

}  // namespace spindle::test
