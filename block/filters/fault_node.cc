#include "block/filters/fault_node.h"

#include "block/trace/trace.h"

namespace spindle {
namespace {

bool matches(const FaultRule& rule, FaultKind kind, bool fua, uint64_t offset, uint64_t length) {
  if (rule.kind == FaultKind::Fua) {
    if (kind != FaultKind::Write || !fua) return false;
  } else if (rule.kind != FaultKind::Any && rule.kind != kind) {
    return false;
  }
  if (!rule.range) return true;
  if (kind == FaultKind::Flush) return false;
  // Without sums: an operation's range may be anything.
  return offset < rule.range->offset ? rule.range->offset - offset < length
                                     : offset - rule.range->offset < rule.range->length;
}

}  // namespace

struct FaultNode::Held {
  FaultNode& node;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) { node.held_.push_back(handle); }
  void await_resume() const noexcept {}
};

FaultNode::FaultNode(std::shared_ptr<Node> child, std::vector<FaultRule> rules)
    : Node(child->reactor()), child_(std::move(child)) {
  for (const FaultRule& rule : rules) add(rule);
}

std::optional<FaultRule> FaultNode::firing(const Operation& operation) {
  std::optional<FaultRule> result;
  for (Armed& armed : rules_) {
    const FaultRule& rule = armed.rule;
    if (!matches(rule, operation.kind, operation.fua, operation.offset, operation.length)) continue;
    ++armed.seen;
    const bool fires = armed.seen == rule.from || (rule.always && armed.seen > rule.from);
    if (fires && !result) result = rule;
  }
  return result;
}

Task<void> FaultNode::wait(FaultRule rule) {
  if (rule.delay.count() != 0) co_await reactor().sleep(rule.delay);
  if (rule.hold) co_await Held{*this};
}

// `call` asks the child. Only when it is its turn: the child may look at its size when it is asked.
template <typename Call>
Task<Result<>> FaultNode::pass(Operation operation, Call call) {
  const auto rule = firing(operation);
  if (!rule) co_return co_await call();
  const trace::Id request = trace::taken();  // while it waits, others are handed down
  Result<> result;
  trace::hand_down(request);
  if (rule->after) result = co_await call();
  co_await wait(*rule);
  if (rule->number != 0) {
    Error error = Error::from_errno(rule->number, operation.name, facts().name, operation.offset);
    error.detail = "injected by fault=";
    co_return std::unexpected(std::move(error));
  }
  trace::hand_down(request);
  if (!rule->after) result = co_await call();
  co_return result;
}

Task<Result<>> FaultNode::read(uint64_t offset, Buffers buffers) {
  return pass({FaultKind::Read, "read", offset, buffers.size},
              [=, this] { return child_->read(offset, buffers); });
}

Task<Result<>> FaultNode::write(uint64_t offset, Buffers buffers, WriteFlags flags) {
  return pass({FaultKind::Write, "write", offset, buffers.size, flags.fua},
              [=, this] { return child_->write(offset, buffers, flags); });
}

Task<Result<>> FaultNode::write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) {
  return pass({FaultKind::WriteZeroes, "write_zeroes", offset, length},
              [=, this] { return child_->write_zeroes(offset, length, flags); });
}

Task<Result<>> FaultNode::discard(uint64_t offset, uint64_t length) {
  return pass({FaultKind::Discard, "discard", offset, length},
              [=, this] { return child_->discard(offset, length); });
}

Task<Result<>> FaultNode::flush() {
  return pass({FaultKind::Flush, "flush"}, [=, this] { return child_->flush(); });
}

void FaultNode::release_all() {
  for (const auto handle : held_) reactor().schedule(handle);
  held_.clear();
}

}  // namespace spindle
