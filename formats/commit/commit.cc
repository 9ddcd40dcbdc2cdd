#include "formats/commit/commit.h"

#include <span>
#include <utility>

namespace spindle {

std::optional<CommitPolicy> parse_commit_policy(std::string_view text) {
  for (const auto policy : {CommitPolicy::Ordered, CommitPolicy::Eager, CommitPolicy::None}) {
    if (to_string(policy) == text) return policy;
  }
  return std::nullopt;
}

std::string_view to_string(CommitPolicy policy) {
  switch (policy) {
    case CommitPolicy::Ordered:
      return "ordered";
    case CommitPolicy::Eager:
      return "eager";
    case CommitPolicy::None:
      break;
  }
  return "none";
}

Commit::Commit(Node& file, Owner& owner, Options options)
    : file_(file), owner_(owner), options_(options), turns_(file.reactor()), timer_(file.reactor(), [this] {
        on_idle();
      }) {}

Task<Result<>> Commit::changed() {
  const uint64_t mine = ++changes_;
  if (options_.policy == CommitPolicy::Ordered) {
    set_timer();
    if (owner_.waiting_bytes() < options_.max_waiting) co_return Result<>{};
  }
  Turns::Turn turn(turns_);
  co_await turn;
  if (written_ >= mine) co_return Result<>{};  // somebody else's commit took it along
  co_return co_await run(options_.policy != CommitPolicy::None);
}

Task<Result<>> Commit::flush() {
  if (options_.mutation == CommitMutation::JoinRunning && running_) {
    Turns::Turn after(turns_);
    co_await after;
    co_return Result<>{};
  }
  Turns::Turn turn(turns_);
  co_await turn;
  co_return co_await run(true);
}

Task<Result<>> Commit::run(bool durable) {
  if (failure_) co_return std::unexpected(*failure_);
  if (abandoned_) {
    co_return std::unexpected(Error{.kind = ErrorKind::FlushFailed,
                                    .operation = "flush",
                                    .node = file_.facts().name,
                                    .detail = "an earlier flush failed; the image must be opened again"});
  }
  running_ = true;
  timer_.clear();
  const uint64_t covers = changes_;
  Batch batch = owner_.freeze();
  auto result = co_await stages(batch, durable);
  running_ = false;
  if (!result) {
    if (options_.mutation != CommitMutation::ForgetAfterError) owner_.restore();
    if (!abandoned_) {
      result.error()->can_flush_again = true;
      set_timer();
    }
    co_return result;
  }
  ++commits_;
  written_ = covers;
  if (options_.mutation != CommitMutation::ReleaseEarly) owner_.published();
  co_return result;
}

Task<Result<>> Commit::stages(Batch& batch, bool durable) {
  const bool ordered = options_.policy == CommitPolicy::Ordered;
  if (options_.mutation == CommitMutation::PointersFirst) std::swap(batch.before, batch.pointers);
  auto result = co_await write_all(batch.before);
  if (!result) co_return result;
  if (ordered && batch.barrier && !batch.pointers.empty() &&
      options_.mutation != CommitMutation::NoBarrierBeforePointers) {
    ++barriers_before_pointers_;
    result = co_await barrier();
    if (!result) co_return result;
  }
  if (options_.mutation == CommitMutation::FreezeTwice) {
    Batch late = owner_.freeze();
    for (auto& write : late.pointers) batch.pointers.push_back(std::move(write));
    for (auto& write : late.before) batch.pointers.push_back(std::move(write));
  }
  result = co_await write_all(batch.pointers);
  if (!result) co_return result;
  if (options_.mutation == CommitMutation::ReleaseEarly) owner_.published();
  if (durable && options_.mutation != CommitMutation::NoFinalBarrier) result = co_await barrier();
  co_return result;
}

Task<Result<>> Commit::write_all(const std::vector<Write>& writes) {
  for (const Write& write : writes) {
    const iovec part{const_cast<std::byte*>(write.bytes.data()), write.bytes.size()};
    auto result = co_await file_.write(write.offset, Buffers(std::span(&part, 1)), {});
    if (!result) co_return result;
  }
  co_return Result<>{};
}

Task<Result<>> Commit::barrier() {
  auto result = co_await file_.flush();
  if (result || options_.mutation == CommitMutation::GoOnAfterFailure) co_return result;
  failure_ = *result.error();
  failure_->kind = ErrorKind::FlushFailed;
  abandon();
  co_return std::unexpected(*failure_);
}

void Commit::set_timer() {
  if (options_.policy == CommitPolicy::Ordered && !timer_.pending() && !abandoned_ &&
      options_.idle.count() != 0)
    timer_.set(options_.idle);
}

void Commit::abandon() {
  abandoned_ = true;
  timer_.clear();
}

void Commit::on_idle() {
  // Nobody waits for this one. If it fails, the next flush says so: by failure_, or by failing itself.
  spawn([](Commit& commit) -> Task<void> { static_cast<void>(co_await commit.flush()); }(*this));
}

Task<void> Commit::close() {
  timer_.clear();
  Turns::Turn turn(turns_);
  co_await turn;
  timer_.clear();
}

}  // namespace spindle
