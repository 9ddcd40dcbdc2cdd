// Running a program of steps: the guest's side (events, their data and their ends) and the seeded
// interleaving with the medium.
#include <fmt/format.h>

#include <chrono>
#include <list>
#include <random>

#include "block/disk.h"
#include "crash/image_node.h"
#include "crash/run.h"
#include "crash/workload.h"

namespace spindle::crash {
namespace {

// So many turns without a step that begins or ends, with nothing in flight on the medium: somebody waits for
// what never comes.
constexpr unsigned kStuckTurns = 10'000;

class Guest {
 public:
  Guest(Disk& disk, RecordingMedium& medium, History& history, std::span<const Step> steps,
        const WorkloadOptions& options)
      : disk_(disk),
        medium_(medium),
        history_(history),
        steps_(steps),
        depth_(options.depth),
        random_(mix(options.seed) ^ 0x6775657374) {}

  Task<Result<>> run() {
    unsigned idle = 0;
    while (next_ < steps_.size() || in_flight_ != 0) {
      co_await medium_.reactor().yield();
      const bool begins = may_begin();
      if (begins && (!medium_.pending() || random_() % 2 == 0)) {
        begin(steps_[next_++]);
        idle = 0;
      } else if (medium_.pending()) {
        medium_.complete_one();
        idle = 0;
      } else if (++idle > kStuckTurns) {
        co_return std::unexpected(Error{.kind = ErrorKind::Io,
                                        .operation = "crash workload",
                                        .node = disk_.id(),
                                        .detail = "requests wait, and nothing is in flight on the medium"});
      }
    }
    if (first_error_) co_return std::unexpected(std::move(*first_error_));
    co_return Result<>{};
  }
  uint64_t writes() const { return writes_; }

 private:
  bool may_begin() const {
    if (next_ == steps_.size() || in_flight_ >= depth_) return false;
    return in_flight_ == 0 || (!steps_[next_].barrier && !exclusive_);
  }

  void begin(const Step& step) {
    const std::size_t index = history_.guest.size();
    GuestEvent event{.kind = step.kind, .fua = step.fua, .offset = step.offset, .length = step.length};
    if (step.kind == GuestEvent::Kind::Resize) event.offset = disk_.size();
    exclusive_ = step.kind == GuestEvent::Kind::Resize;
    const std::vector<std::byte>* data = nullptr;
    if (step.kind == GuestEvent::Kind::Write) {
      event.write = ++writes_;
      data = &fill(step, event.write);
    }
    event.submitted = medium_.tick();
    history_.guest.push_back(event);
    ++in_flight_;
    spawn(carry_out(step, data), [this, index](Result<> result) {
      GuestEvent& ended = history_.guest[index];
      ended.completed = medium_.tick();
      ended.failed = !result;
      if (!result && !first_error_) first_error_ = std::move(result.error());
      --in_flight_;
    });
  }

  // The data lives until the end: whoever is late with copying it finds it unchanged.
  const std::vector<std::byte>& fill(const Step& step, uint32_t write) {
    auto& data = data_.emplace_back(step.length);
    for (uint64_t at = 0; at < step.length; at += kSector) {
      fill_pattern(data.data() + at, (step.offset + at) / kSector, write);
      history_.contents->intern(data.data() + at);
    }
    return data;
  }

  Task<Result<>> carry_out(Step step, const std::vector<std::byte>* data) {
    switch (step.kind) {
      case GuestEvent::Kind::Write: {
        const iovec part{const_cast<std::byte*>(data->data()), data->size()};
        co_return co_await disk_.write(step.offset, Buffers(std::span(&part, 1), data->size()),
                                       WriteFlags{.fua = step.fua});
      }
      case GuestEvent::Kind::Zero:
        co_return co_await disk_.write_zeroes(step.offset, step.length,
                                              ZeroFlags{.unmap = step.unmap, .fua = step.fua});
      case GuestEvent::Kind::Discard:
        co_return co_await disk_.discard(step.offset, step.length);
      case GuestEvent::Kind::Flush:
        co_return co_await disk_.flush();
      case GuestEvent::Kind::Resize:
        co_return co_await disk_.resize(step.length);
      case GuestEvent::Kind::CacheOn:
      case GuestEvent::Kind::CacheOff:
        break;
    }
    co_return co_await disk_.set_write_cache(step.kind == GuestEvent::Kind::CacheOn);
  }

  Disk& disk_;
  RecordingMedium& medium_;
  History& history_;
  std::span<const Step> steps_;
  unsigned depth_;
  std::mt19937_64 random_;
  std::size_t next_ = 0;
  unsigned in_flight_ = 0;
  bool exclusive_ = false;
  uint32_t writes_ = 0;
  std::list<std::vector<std::byte>> data_;
  std::optional<BoxedError> first_error_;
};

// Where the image keeps the guest's data, as far as it says.
void note_data(RecordingMedium& medium, Node& node, History& history) {
  const uint64_t size = node.size();
  for (uint64_t at = 0; at < size;) {
    auto extent = run_over(medium, node.map(at, size - at));
    if (!extent || extent->length == 0) return;
    if (extent->data && extent->file_offset)
      history.data_spans.push_back({*extent->file_offset, *extent->file_offset + extent->length});
    at += extent->length;
  }
}

}  // namespace

Result<uint64_t> block_of(Reactor& reactor, const Subject& subject) {
  constexpr uint64_t kProbeBytes = 16 << 20;
  ContentStore contents;
  SectorImage image(contents);
  auto file = std::make_shared<ImageNode>(reactor, image);
  SPINDLE_TRY(run_now(reactor, subject.create(file, kProbeBytes)));
  auto node = run_now(reactor, subject.open(file));
  if (!node) return std::unexpected(std::move(node.error()));
  const uint64_t block = (*node)->facts().cluster_size;
  SPINDLE_TRY(run_now(reactor, (*node)->close()));
  return block;
}

Result<History> record_steps(Reactor& reactor, const Subject& subject, std::span<const Step> steps,
                             uint64_t disk_bytes, const WorkloadOptions& options, WorkloadCounts* counts) {
  History history;
  {
    auto file = std::make_shared<ImageNode>(reactor, history.base);
    SPINDLE_TRY(run_now(reactor, subject.create(file, disk_bytes)));
    history.base.forget_past();
  }
  history.has_guest = true;
  history.starts_write_back = options.write_back;
  RecordingMedium::Options medium_options = options.medium;
  medium_options.seed = mix(options.seed) ^ medium_options.seed;
  auto medium = std::make_shared<RecordingMedium>(reactor, history, medium_options);
  const auto begin = std::chrono::steady_clock::now();
  auto node = run_over(*medium, subject.open(medium));
  if (!node) return std::unexpected(std::move(node.error()));
  history.guest_size = (*node)->size();
  {
    Disk disk(*node, {.id = subject.name,
                      .cache = options.write_back ? CacheMode::Writeback : CacheMode::Writethrough,
                      .discard = true});
    Guest guest(disk, *medium, history, steps, options);
    SPINDLE_TRY(run_now(reactor, guest.run()));
    note_data(*medium, **node, history);
    SPINDLE_TRY(run_over(*medium, disk.close()));
    if (counts) counts->guest_writes += guest.writes();
  }
  if (counts) {
    counts->seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (const Operation& operation : history.operations) {
      counts->medium_flushes += operation.kind == Operation::Kind::Flush;
    }
  }
  history.finish();
  return history;
}

Result<History> record_program(Reactor& reactor, const Subject& subject, std::string_view program,
                               const WorkloadOptions& options, WorkloadCounts* counts) {
  auto block = block_of(reactor, subject);
  if (!block) return std::unexpected(std::move(block.error()));
  const uint64_t unit = *block != 0 ? *block : options.default_block;
  const uint64_t disk_bytes = unit * options.blocks;
  const auto steps = make_program(program, disk_bytes, unit, options.steps, options.seed);
  if (steps.empty()) {
    return std::unexpected(
        Error::invalid("crash workload", std::string(program), "there is no such workload"));
  }
  return record_steps(reactor, subject, steps, disk_bytes, options, counts);
}

}  // namespace spindle::crash
