#include "crash/recording_medium.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "block/protocols/bounce_pool.h"
#include "crash/image_node.h"

namespace spindle::crash {

// Waits to be chosen.
struct RecordingMedium::Turn {
  RecordingMedium& medium;
  bool await_ready() const noexcept { return medium.options_.immediate; }
  void await_suspend(std::coroutine_handle<> handle) { medium.held_.push_back(handle); }
  void await_resume() const noexcept {}
};

RecordingMedium::RecordingMedium(Reactor& reactor, History& history, Options options)
    : Node(reactor),
      history_(history),
      options_(options),
      random_(options.seed),
      facts_(facts_of_medium("medium")),
      contents_(*history.contents),
      live_(history.base, contents_) {}

void RecordingMedium::complete_one() {
  const std::size_t chosen = random_() % held_.size();
  const auto handle = held_[chosen];
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(chosen));
  handle.resume();
}

Result<> RecordingMedium::check_writable_range(const char* operation, uint64_t offset,
                                               uint64_t length) const {
  if (options_.extends && offset <= kLargestImage && length <= kLargestImage - offset) return {};
  return check_range(operation, offset, length);
}

std::size_t RecordingMedium::submit(Operation operation) {
  operation.submitted = tick();
  history_.operations.push_back(std::move(operation));
  return history_.operations.size() - 1;
}

Task<Result<>> RecordingMedium::carry_out(std::size_t index) {
  Turn turn{*this};
  co_await turn;
  // The vector grows while others are submitted, so the operation is looked up each time.
  Operation& operation = history_.operations[index];
  if (options_.loses_racing_data && operation.kind == Operation::Kind::Resize) lose_what_races(operation);
  apply(operation, live_);
  live_.forget_past();
  operation.completed = tick();
  co_return Result<>{};
}

// What is in flight and reaches beyond the old end puts zeroes there instead of its data.
void RecordingMedium::lose_what_races(const Operation& growth) {
  if (growth.length <= growth.offset) return;
  for (Operation& write : history_.operations) {
    if (write.kind != Operation::Kind::Write || write.completed < growth.submitted) continue;
    for (auto& piece : write.pieces) {
      if ((piece.sector + 1) * kSector > growth.offset) piece.content = kZeroContent;
    }
    if (write.completed != kNever && write.offset + write.length > growth.offset) {
      const uint64_t from = std::max(write.offset, growth.offset);
      live_.zero(from, write.offset + write.length - from);
    }
  }
}

Task<Result<>> RecordingMedium::read(uint64_t offset, Buffers buffers) {
  SPINDLE_CO_TRY(check_range("read", offset, buffers.size));
  Turn turn{*this};
  co_await turn;
  read_into(live_, offset, buffers);
  co_return Result<>{};
}

Task<Result<>> RecordingMedium::write(uint64_t offset, Buffers buffers, WriteFlags flags) {
  if (auto inside = check_writable_range("write", offset, buffers.size); !inside)
    return finished(std::move(inside));
  Operation operation{.kind = Operation::Kind::Write,
                      .fua = flags.fua,
                      .offset = offset,
                      .length = buffers.size,
                      .pieces = {}};
  // The data is taken now: what its owner does to the memory later is not what was written.
  for (uint64_t done = 0; done < buffers.size;) {
    const uint64_t at = offset + done;
    const uint64_t from = at % kSector;
    const uint64_t part = std::min(buffers.size - done, kSector - from);
    Sector sector{};
    copy_from(buffers, done, sector.data() + from, part);
    operation.pieces.push_back({at / kSector, contents_.intern(sector.data()), static_cast<uint16_t>(from),
                                static_cast<uint16_t>(from + part)});
    done += part;
  }
  return carry_out(submit(std::move(operation)));
}

Task<Result<>> RecordingMedium::write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) {
  if (auto inside = check_range("write_zeroes", offset, length); !inside) return finished(std::move(inside));
  return carry_out(submit({.kind = Operation::Kind::Zero,
                           .fua = flags.fua,
                           .unmap = flags.unmap,
                           .offset = offset,
                           .length = length,
                           .pieces = {}}));
}

Task<Result<>> RecordingMedium::discard(uint64_t offset, uint64_t length) {
  if (auto inside = check_range("discard", offset, length); !inside) return finished(std::move(inside));
  // A hint that every fourth time is not taken.
  return carry_out(submit({.kind = Operation::Kind::Discard,
                           .took_effect = random_() % 4 != 0,
                           .offset = offset,
                           .length = length,
                           .pieces = {}}));
}

Task<Result<>> RecordingMedium::flush() {
  return carry_out(submit({.kind = Operation::Kind::Flush, .pieces = {}}));
}

Task<Result<Extent>> RecordingMedium::map(uint64_t offset, uint64_t length) {
  SPINDLE_CO_TRY(check_range("map", offset, length));
  co_return extent_of(live_, offset, length);
}

Task<Result<>> RecordingMedium::resize(uint64_t size) {
  if (size > kLargestImage)
    return finished(Result<>(std::unexpected(Error::from_errno(EFBIG, "resize", facts_.name, size))));
  return carry_out(
      submit({.kind = Operation::Kind::Resize, .offset = live_.size(), .length = size, .pieces = {}}));
}

}  // namespace spindle::crash
