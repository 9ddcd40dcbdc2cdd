// HeldNode: a medium under a test's control. Every write and flush stops inside it until the test releases
// it, in any order, with success or failure, and the node knows exactly what is durable: a flush makes
// durable what had reached the medium when the flush *started*, and nothing else. That is the least a real
// one may do, so nothing weaker passes.
#pragma once

#include <cerrno>
#include <coroutine>
#include <cstring>
#include <set>
#include <vector>

#include "block/node.h"

namespace spindle::test {

class HeldNode final : public Node {
 public:
  struct Held {
    enum class Kind { Write, Flush } kind;
    uint64_t id = 0;              // of a write: the value its buffer starts with
    std::set<uint64_t> snapshot;  // of a flush: what it will make durable
    bool fua = false;
    bool fail = false;
    bool can_flush_again = false;  // of a failed flush
    std::coroutine_handle<> waiter;
  };

  explicit HeldNode(Reactor& reactor) : Node(reactor) {
    facts_.name = "held";
    facts_.supports_fua = true;
  }

  std::vector<Held*>& held() { return held_; }
  bool durable(uint64_t id) const { return durable_.contains(id); }
  bool cached(uint64_t id) const { return cached_.contains(id); }
  uint64_t flushes_started() const { return flushes_started_; }
  uint64_t flushes_running() const { return flushes_running_; }

  /// Lets the operation go on; a failed write may or may not have reached the medium, here it has not.
  void release(Held* held, bool fail, bool can_flush_again = false) {
    std::erase(held_, held);
    held->fail = fail;
    held->can_flush_again = can_flush_again;
    if (held->kind == Held::Kind::Write) {
      if (!fail) cached_.insert(held->id);
      if (!fail && held->fua) durable_.insert(held->id);
    } else {
      --flushes_running_;
      if (!fail) durable_.insert(held->snapshot.begin(), held->snapshot.end());
    }
    held->waiter.resume();
  }

  const NodeFacts& facts() const override { return facts_; }
  uint64_t size() const override { return size_; }
  Task<Result<>> read(uint64_t, Buffers) override { co_return Result<>{}; }
  Task<Result<>> write(uint64_t, Buffers buffers, WriteFlags flags) override {
    Held held{.kind = Held::Kind::Write, .snapshot = {}, .fua = flags.fua, .waiter = {}};
    std::memcpy(&held.id, buffers.parts[0].iov_base, sizeof held.id);
    return hold(std::move(held), "write");
  }
  Task<Result<>> write_zeroes(uint64_t, uint64_t, ZeroFlags) override { co_return Result<>{}; }
  Task<Result<>> discard(uint64_t, uint64_t) override { co_return Result<>{}; }
  Task<Result<>> flush() override {
    ++flushes_started_;
    ++flushes_running_;
    return hold(Held{.kind = Held::Kind::Flush, .snapshot = cached_, .waiter = {}}, "flush");
  }
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override {
    co_return Extent{.offset = offset, .length = length, .data = true};
  }
  Task<Result<>> resize(uint64_t size) override {
    size_ = size;
    co_return Result<>{};
  }
  Task<Result<>> close() override { co_return Result<>{}; }

 private:
  Task<Result<>> hold(Held held, const char* operation) {
    struct Wait {
      HeldNode& node;
      Held& held;
      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<> handle) {
        held.waiter = handle;
        node.held_.push_back(&held);
      }
      void await_resume() const noexcept {}
    };
    co_await Wait{*this, held};
    if (!held.fail) co_return Result<>{};
    Error error = Error::from_errno(EIO, operation, facts_.name);
    error.can_flush_again = held.can_flush_again;
    co_return std::unexpected(std::move(error));
  }

  uint64_t size_ = 1 << 20;
  NodeFacts facts_;
  std::vector<Held*> held_;
  std::set<uint64_t> cached_;
  std::set<uint64_t> durable_;
  uint64_t flushes_started_ = 0;
  uint64_t flushes_running_ = 0;
};

/// Turns the loop until nothing is ready any more (operations that are held stay held).
inline void settle(Reactor& reactor) {
  reactor.wait([](Reactor& r) -> Task<void> {
    for (int i = 0; i < 4; ++i) co_await r.yield();
  }(reactor));
}

}  // namespace spindle::test
