// fault: fails, delays or holds operations of its child by rule (fault_rule.h has the rules and their text
// form).
//
// All rules see every operation and count it. Of the rules that fire for one operation, the first in their
// order is obeyed. Without `after` the child never sees a failed operation, and sees a delayed or held one
// only when that is over; with it, the child does its part at once and what comes later is the answer.
//
// A FUA write that fails here fails as a whole, with the rule's errno. A resize or map is never touched.
//
// Threading: the node's reactor only; release_all() too.
#pragma once

#include <coroutine>
#include <memory>
#include <vector>

#include "block/filters/fault_rule.h"
#include "block/node.h"

namespace spindle {

class FaultNode final : public Node {
 public:
  FaultNode(std::shared_ptr<Node> child, std::vector<FaultRule> rules);

  const NodeFacts& facts() const override { return child_->facts(); }
  uint64_t size() const override { return child_->size(); }
  Task<Result<>> read(uint64_t offset, Buffers buffers) override;
  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override;
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override;
  Task<Result<>> discard(uint64_t offset, uint64_t length) override;
  Task<Result<>> flush() override;
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override { return child_->map(offset, length); }
  Task<Result<>> resize(uint64_t size) override { return child_->resize(size); }
  Task<Result<>> close() override { return child_->close(); }
  Node* child() const override { return child_.get(); }

  /// Adds a rule that counts from now on.
  void add(FaultRule rule) { rules_.push_back({rule, 0}); }
  void clear() { rules_.clear(); }
  /// Lets all operations that are held go on, in the order they came. Later ones are held again.
  void release_all();
  /// How many are held now.
  std::size_t held() const { return held_.size(); }

 private:
  struct Operation {
    FaultKind kind;
    const char* name;
    uint64_t offset = 0;
    uint64_t length = 0;
    bool fua = false;
  };
  struct Armed {
    FaultRule rule;
    uint64_t seen = 0;
  };
  struct Held;

  std::optional<FaultRule> firing(const Operation& operation);
  /// Runs `task`, the operation on the child, under the rule that fires, if one does.
  template <typename Call>
  Task<Result<>> pass(Operation operation, Call call);
  Task<void> wait(FaultRule rule);

  std::shared_ptr<Node> child_;
  std::vector<Armed> rules_;
  std::vector<std::coroutine_handle<>> held_;
};

}  // namespace spindle
