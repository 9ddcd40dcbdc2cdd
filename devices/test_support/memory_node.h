// MemoryNode: a disk in memory for device tests, with hooks.
//
// An operation can be held: it suspends before it touches anything and goes on when released, in the order of
// its start. It can be made to fail. Two copies of the bytes are kept: what is readable, and what was durable
// at the last flush (what a power cut would leave), so that a test can say what the durability contract says.
//
// Threading: the reactor's, but the hooks may be set before it runs.
#pragma once

#include <array>
#include <coroutine>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "block/node.h"

namespace spindle::test {

class MemoryNode final : public Node {
 public:
  enum class Op : uint8_t { Read, Write, Zero, Discard, Flush };
  static constexpr std::size_t kOps = 5;

  struct Record {
    Op op;
    uint64_t offset;
    uint64_t length;
    bool fua = false;
    bool operator==(const Record&) const = default;
  };

  MemoryNode(Reactor& reactor, uint64_t bytes) : Node(reactor), data_(bytes), durable_(bytes) {
    facts_.name = "memory";
    facts_.supports_zeroes = true;
    facts_.discard_granularity = 512;
    facts_.discard_zeroes = true;
  }

  /// For facts other than the usual, before a Disk is made.
  NodeFacts& change_facts() { return facts_; }

  /// What is readable now.
  std::span<uint8_t> data() { return data_; }
  /// What a power cut now would leave.
  std::span<const uint8_t> durable() const { return durable_; }
  /// Operations that were carried out, in order.
  const std::vector<Record>& log() const { return log_; }
  void clear_log() { log_.clear(); }
  uint64_t count(Op op) const { return counts_[index(op)]; }

  /// From now on operations of this kind wait.
  void hold(Op op) { holding_[index(op)] = true; }
  /// Lets those that wait go on, and later ones through.
  void release(Op op) {
    holding_[index(op)] = false;
    for (auto handle : std::exchange(held_[index(op)], {})) reactor().schedule(handle);
  }
  /// Lets the one that has waited longest go on. False if none waits.
  bool release_one(Op op) {
    auto& held = held_[index(op)];
    if (held.empty()) return false;
    reactor().schedule(held.front());
    held.erase(held.begin());
    return true;
  }
  std::size_t held(Op op) const { return held_[index(op)].size(); }

  /// The next `times` operations of this kind fail with `number`, after having been held, and do nothing.
  void fail(Op op, int number, uint64_t times = 1) { failures_[index(op)] = {number, times}; }

  const NodeFacts& facts() const override { return facts_; }
  uint64_t size() const override { return data_.size(); }

  Task<Result<>> read(uint64_t offset, Buffers buffers) override {
    const Record what{Op::Read, offset, buffers.size};
    SPINDLE_CO_TRY(co_await admit(what, "read"));
    for (const iovec& part : buffers.parts) {
      std::memcpy(part.iov_base, data_.data() + offset, part.iov_len);
      offset += part.iov_len;
    }
    co_return Result<>{};
  }
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override {
    const Record what{Op::Write, offset, buffers.size, flags.fua};
    SPINDLE_CO_TRY(co_await admit(what, "write"));
    for (const iovec& part : buffers.parts) {
      std::memcpy(data_.data() + offset, part.iov_base, part.iov_len);
      if (flags.fua) std::memcpy(durable_.data() + offset, part.iov_base, part.iov_len);
      offset += part.iov_len;
    }
    co_return Result<>{};
  }
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override {
    const Record what{Op::Zero, offset, length, flags.fua};
    SPINDLE_CO_TRY(co_await admit(what, "write_zeroes"));
    std::memset(data_.data() + offset, 0, length);
    if (flags.fua) std::memset(durable_.data() + offset, 0, length);
    co_return Result<>{};
  }
  Task<Result<>> discard(uint64_t offset, uint64_t length) override {
    const Record what{Op::Discard, offset, length};
    SPINDLE_CO_TRY(co_await admit(what, "discard"));
    std::memset(data_.data() + offset, 0, length);
    co_return Result<>{};
  }
  Task<Result<>> flush() override {
    const std::vector<uint8_t> covered = data_;  // what completed before the call (D1)
    const Record what{Op::Flush, 0, 0};
    SPINDLE_CO_TRY(co_await admit(what, "flush"));
    durable_ = covered;
    co_return Result<>{};
  }
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override {
    if (auto error = check_range("map", offset, length)) co_return std::unexpected(std::move(*error));
    co_return Extent{.offset = offset, .length = length, .data = true};
  }
  Task<Result<>> resize(uint64_t bytes) override {
    data_.resize(bytes);
    durable_.resize(bytes);
    co_return Result<>{};
  }
  Task<Result<>> close() override { co_return Result<>{}; }

 private:
  struct Failure {
    int number = 0;
    uint64_t times = 0;
  };
  static std::size_t index(Op op) { return static_cast<std::size_t>(op); }

  Task<Result<>> admit(Record what, const char* name) {
    struct Held {
      MemoryNode& node;
      Op op;
      bool await_ready() const noexcept { return !node.holding_[index(op)]; }
      void await_suspend(std::coroutine_handle<> handle) { node.held_[index(op)].push_back(handle); }
      void await_resume() const noexcept {}
    };
    if (auto error = check_range(name, what.offset, what.length))
      co_return std::unexpected(std::move(*error));
    co_await Held{*this, what.op};
    Failure& failure = failures_[index(what.op)];
    if (failure.times > 0) {
      --failure.times;
      co_return std::unexpected(Error::from_errno(failure.number, name, facts_.name, what.offset));
    }
    log_.push_back(what);
    ++counts_[index(what.op)];
    co_return Result<>{};
  }

  NodeFacts facts_;
  std::vector<uint8_t> data_;
  std::vector<uint8_t> durable_;
  std::vector<Record> log_;
  std::array<uint64_t, kOps> counts_{};
  std::array<bool, kOps> holding_{};
  std::array<std::vector<std::coroutine_handle<>>, kOps> held_;
  std::array<Failure, kOps> failures_{};
};

}  // namespace spindle::test
