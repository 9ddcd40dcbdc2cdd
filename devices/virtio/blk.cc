#include "devices/virtio/blk.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <coroutine>
#include <cstring>
#include <utility>

namespace spindle::virtio {
namespace {

// A queue takes at most this many chains a turn, and no further one once those taken name this many bytes, so
// that a guest which never stops adding work leaves the reactor to the other disks in between. The bytes
// count because the kernel copies what is in the page cache while the turn submits it.
constexpr unsigned kChainsPerTurn = 128;
constexpr uint64_t kBytesPerTurn = 16 << 20;

// A request needs a descriptor each for its header and its status besides its segments.
constexpr uint32_t kNonDataDescriptors = 2;

constexpr const char* kQueued = "queued";

const char* name_of(BlkRequest::Kind kind) {
  switch (kind) {
    case BlkRequest::Kind::Read:
      return "virtio read";
    case BlkRequest::Kind::Write:
      return "virtio write";
    case BlkRequest::Kind::Flush:
      return "virtio flush";
    case BlkRequest::Kind::GetId:
      return "virtio get id";
    case BlkRequest::Kind::Discard:
      return "virtio discard";
    case BlkRequest::Kind::WriteZeroes:
      return "virtio write zeroes";
    case BlkRequest::Kind::Reject:
    case BlkRequest::Kind::Unanswerable:
      break;
  }
  return "virtio bad request";
}

const char* name_of_status(uint8_t status) {
  return status == kBlkStatusOk ? "ok" : status == kBlkStatusIoError ? "IOERR" : "UNSUPP";
}

}  // namespace

struct VirtioBlk::Request {
  Chain chain;
  uint8_t* status = nullptr;
  std::vector<ByteRange> ranges;
  trace::Id traced = 0;
  const char* traced_name = nullptr;
};

class VirtioBlk::Queue final : public Reactor::BatchHook {
 public:
  Queue(VirtioBlk& device, unsigned index) : device_(device), index_(index) {}

  std::string_view start(const QueueLayout& layout) {
    const auto wrong = ring_.enable(layout, device_.memory_, device_.ring_features(),
                                    device_.options_.queue_size, device_.options_.queue_size);
    if (wrong.empty()) wake();  // a notification may have come before there was anybody to hear it
    return wrong;
  }
  /// Takes and publishes nothing any more. What is in flight goes on.
  void halt() {
    ring_.disable();
    end_traced("dropped by a reset");
    work_ = false;
    device_.disk_.reactor().disarm(*this);
  }
  /// Returns when nothing is in flight; halt() came before. One at a time.
  Task<void> idle() {
    struct Idle {
      Queue& queue;
      bool await_ready() const noexcept { return queue.in_flight_ == 0; }
      void await_suspend(std::coroutine_handle<> handle) { queue.idle_waiter_ = handle; }
      void await_resume() const noexcept {}
    };
    co_await Idle{*this};
  }
  uint64_t in_flight() const { return in_flight_; }
  void began() { ++in_flight_; }
  void ended() {
    if (--in_flight_ == 0 && idle_waiter_)
      device_.disk_.reactor().schedule(std::exchange(idle_waiter_, nullptr));
  }
  bool running() const { return ring_.enabled(); }
  Virtqueue& ring() { return ring_; }

  /// There may be chains to take.
  void wake() {
    if (!running()) return;
    if (!work_ && trace::on()) [[unlikely]]
      noticed_at_ = trace::now();
    work_ = true;
    arm();
  }
  /// When the device knew that a chain which it takes now may be there: the doorbell, or the turn before that
  /// left work.
  uint64_t noticed_at() const { return noticed_at_ != 0 ? noticed_at_ : trace::now(); }
  /// A traced request was answered, and the driver is about to be told.
  void answered(const Request& request, uint8_t status) {
    traced_.push_back({request.traced, request.traced_name, name_of_status(status)});
    if (!running()) end_traced("dropped by a reset");
  }
  /// Something was pushed. Within a turn the turn itself will publish it.
  void pushed() {
    if (!in_turn_) arm();
  }

  void end_of_batch() override {
    in_turn_ = true;
    if (work_ && !device_.suspended_) {
      take();
      noticed_at_ = work_ && trace::on() ? trace::now() : 0;
    }
    in_turn_ = false;
    const bool interrupt = ring_.publish();
    if (interrupt) device_.transport_->interrupt_queue(index_);
    if (!traced_.empty()) [[unlikely]]
      end_traced(interrupt ? "interrupt" : "the driver wants no interrupt");
    if (work_ && !device_.suspended_) arm();
  }

 private:
  void arm() { device_.disk_.reactor().arm(*this); }
  void end_traced(const char* why) {
    for (const Traced& done : traced_) trace::end(done.id, done.name, done.outcome, why);
    traced_.clear();
  }

  void take() {
    ring_.suppress_notifications();
    uint64_t bytes = 0;
    for (unsigned taken = 0; taken < kChainsPerTurn && bytes < kBytesPerTurn;) {
      Request& request = device_.take_request();
      switch (ring_.pop(request.chain)) {
        case Pop::Taken:
          ++taken;
          bytes += request.chain.readable_bytes + request.chain.writable_bytes;
          device_.serve(*this, request);
          break;
        case Pop::Empty:
          device_.free_requests_.push_back(&request);
          if (ring_.enable_notifications()) break;
          work_ = false;
          return;
        case Pop::Broken:
          device_.free_requests_.push_back(&request);
          work_ = false;
          device_.transport_->needs_reset(ring_.broken_reason());
          return;
      }
    }
  }

  VirtioBlk& device_;
  unsigned index_;
  Virtqueue ring_;
  bool work_ = false;
  bool in_turn_ = false;
  uint64_t in_flight_ = 0;
  std::coroutine_handle<> idle_waiter_;  // while requests are in flight
  struct Traced {
    trace::Id id;
    const char* name;
    const char* outcome;
  };
  uint64_t noticed_at_ = 0;     // only while a trace is recorded
  std::vector<Traced> traced_;  // answered since the driver was last told
};

Result<std::unique_ptr<VirtioBlk>> VirtioBlk::create(Disk& disk, const GuestMemory& memory,
                                                     BlkOptions options) {
  if (options.queue_size < 4 || options.queue_size > 1024 || !std::has_single_bit(options.queue_size)) {
    return std::unexpected(
        Error::invalid("virtio-blk", disk.id(),
                       fmt::format("queue size {} is no power of two from 4 to 1024", options.queue_size)));
  }
  if (options.queues < 1 || options.queues > 64) {
    return std::unexpected(Error::invalid("virtio-blk", disk.id(),
                                          fmt::format("{} queues; 1 to 64 are possible", options.queues)));
  }
  return std::unique_ptr<VirtioBlk>(new VirtioBlk(disk, memory, std::move(options)));
}

VirtioBlk::VirtioBlk(Disk& disk, const GuestMemory& memory, BlkOptions options)
    : disk_(disk), memory_(memory), options_(std::move(options)) {
  for (unsigned i = 0; i < options_.queues; ++i) queues_.push_back(std::make_unique<Queue>(*this, i));
}

VirtioBlk::~VirtioBlk() {
  assert(in_flight() == 0);
}

uint64_t VirtioBlk::features() const {
  return kFeatureVersion1 | kFeatureRingIndirectDesc | kFeatureRingEventIdx | kFeatureRingReset | kBlkSegMax |
         kBlkBlkSize | kBlkFlush | kBlkTopology | kBlkConfigWce | kBlkDiscard | kBlkWriteZeroes |
         (disk_.read_only() ? kBlkReadOnly : 0) | (queues_.size() > 1 ? kBlkMq : 0) |
         (options_.packed ? kFeatureRingPacked : 0);
}

bool VirtioBlk::acknowledge(uint64_t features) {
  if (features & ~this->features()) return false;
  if (!(features & kFeatureVersion1)) return false;
  acknowledged_.store(features, std::memory_order_release);
  return true;
}

void VirtioBlk::read_config(uint64_t offset, std::span<uint8_t> data) const {
  const NodeFacts& facts = disk_.node().facts();
  const uint32_t sectors_per_block = std::max<uint32_t>(1, facts.request_alignment / kBlkSector);
  // CONFIG_WCE without FLUSH is write-through from FEATURES_OK on, and says so at once.
  const bool writethrough_for_good = acknowledged(kBlkConfigWce) && !acknowledged(kBlkFlush);
  const BlkConfig config{
      .capacity = disk_.size() / kBlkSector,
      .seg_max = options_.queue_size - kNonDataDescriptors,
      .blk_size = kBlkSector,
      .physical_block_exp = static_cast<uint8_t>(std::bit_width(sectors_per_block) - 1),
      .min_io_size = static_cast<uint16_t>(std::min<uint32_t>(sectors_per_block, 0xffff)),
      .writeback = !writethrough_for_good && disk_.write_cache(),
      .num_queues = static_cast<uint16_t>(queues_.size()),
      .max_discard_sectors = kMaxSegmentSectors,
      .max_discard_seg = kMaxDiscardSegments,
      .discard_sector_alignment = std::max<uint32_t>(1, facts.discard_granularity / kBlkSector),
      .max_write_zeroes_sectors = kMaxSegmentSectors,
      .max_write_zeroes_seg = kMaxWriteZeroesSegments,
      .write_zeroes_may_unmap = disk_.unmaps(),
  };
  std::fill(data.begin(), data.end(), uint8_t{0});
  if (offset >= sizeof config) return;
  std::memcpy(data.data(), reinterpret_cast<const uint8_t*>(&config) + offset,
              std::min<uint64_t>(data.size(), sizeof config - offset));
}

bool VirtioBlk::config_writable(uint64_t offset, std::size_t width) const {
  return offset == kBlkConfigWriteback && width == 1 && acknowledged(kBlkConfigWce) &&
         acknowledged(kBlkFlush);
}

std::string_view VirtioBlk::check_queue(const QueueLayout& layout) const {
  return Virtqueue::check(layout, memory_, ring_features(), options_.queue_size);
}

RingFeatures VirtioBlk::ring_features() const {
  return {.indirect = acknowledged(kFeatureRingIndirectDesc),
          .event_idx = acknowledged(kFeatureRingEventIdx),
          .packed = acknowledged(kFeatureRingPacked)};
}

// A driver that cannot flush must find its writes durable. If the flush of what came before fails, the disk
// is write-through all the same and refuses writes from then on (D3, D6), so there is nothing to report here.
Task<void> VirtioBlk::negotiate() {
  if (!acknowledged(kBlkFlush)) co_await disk_.set_write_cache(false);
}

std::string_view VirtioBlk::start_queue(unsigned queue, const QueueLayout& layout) {
  return queues_[queue]->start(layout);
}

Task<void> VirtioBlk::reset_queue(unsigned queue) {
  queues_[queue]->halt();
  const DrainSection drained(disk_.node());
  co_await queues_[queue]->idle();
}

void VirtioBlk::notify(unsigned queue) {
  if (queue < queues_.size()) queues_[queue]->wake();
}

Task<Result<>> VirtioBlk::write_config(uint64_t offset, std::span<const uint8_t> data) {
  if (!config_writable(offset, data.size()) || data[0] > 1) co_return Result<>{};
  co_return co_await disk_.set_write_cache(data[0] == 1);
}

Task<void> VirtioBlk::stop() {
  for (auto& queue : queues_) queue->halt();
  const DrainSection drained(disk_.node());
  for (auto& queue : queues_) co_await queue->idle();
}

Task<void> VirtioBlk::reset() {
  co_await stop();
  acknowledged_.store(0, std::memory_order_release);
  co_await disk_.revert_write_cache();  // a failure leaves the disk write-through and refusing writes (D6)
}

void VirtioBlk::resume() {
  suspended_ = false;
  for (auto& queue : queues_) queue->wake();
}

uint64_t VirtioBlk::in_flight() const {
  uint64_t sum = 0;
  for (const auto& queue : queues_) sum += queue->in_flight();
  return sum;
}

VirtioBlk::Request& VirtioBlk::take_request() {
  if (free_requests_.empty()) {
    requests_.push_back(std::make_unique<Request>());
    requests_.back()->chain.parts.reserve(8);
    free_requests_.reserve(requests_.size());
    return *requests_.back();
  }
  Request& request = *free_requests_.back();
  free_requests_.pop_back();
  return request;
}

// `written`: bytes that a success leaves in the guest's memory.
template <typename Operation>
Detached VirtioBlk::run(Queue& queue, Request& request, Operation operation, uint64_t written) {
  const Result<> result = co_await operation;
  finish(queue, request, result ? kBlkStatusOk : kBlkStatusIoError, result ? written : 0);
}

// What needs the disk goes on in run(); all else is answered here.
void VirtioBlk::serve(Queue& queue, Request& request) {
  queue.began();
  const BlkLimits limits{.capacity = disk_.size(), .read_only = disk_.read_only(), .features = acknowledged_};
  const BlkRequest parsed = BlkRequest::parse(request.chain, limits, request.ranges);
  request.status = parsed.status;
  const Buffers buffers(parsed.data, parsed.data_bytes);
  if (trace::on()) [[unlikely]] {
    request.traced = disk_.track().new_request();
    request.traced_name = name_of(parsed.kind);
    trace::begin_at(queue.noticed_at(), request.traced, request.traced_name,
                    {parsed.offset, parsed.data_bytes});
    trace::begin_at(queue.noticed_at(), request.traced, kQueued);
    trace::end(request.traced, kQueued, "ok");
    trace::hand_down(request.traced);
  }
  switch (parsed.kind) {
    case BlkRequest::Kind::Read:
      run(queue, request, disk_.read(parsed.offset, buffers), parsed.data_bytes);
      break;
    case BlkRequest::Kind::Write:
      run(queue, request, disk_.write(parsed.offset, buffers), 0);
      break;
    case BlkRequest::Kind::Flush:
      run(queue, request, disk_.flush(), 0);
      break;
    case BlkRequest::Kind::GetId:
      finish(queue, request, kBlkStatusOk, answer_id(parsed));
      break;
    case BlkRequest::Kind::Discard:
      run(queue, request, disk_.discard(request.ranges), 0);
      break;
    case BlkRequest::Kind::WriteZeroes:
      serve_write_zeroes(queue, request, parsed.unmap);
      break;
    case BlkRequest::Kind::Reject:
      finish(queue, request, parsed.reject_with, 0);
      break;
    case BlkRequest::Kind::Unanswerable:
      // The turn that took this chain finds the queue broken when it asks for the next.
      queue.ring().declare_broken("a request has no status byte that could be written");
      give_back(queue, request);
      break;
  }
}

void VirtioBlk::serve_write_zeroes(Queue& queue, Request& request, bool unmap) {
  if (request.ranges.empty()) return finish(queue, request, kBlkStatusOk, 0);
  static_assert(kMaxWriteZeroesSegments == 1);
  const auto [offset, length] = request.ranges.front();
  run(queue, request, disk_.write_zeroes(offset, length, ZeroFlags{.unmap = unmap}), 0);
}

// `written` counts bytes from the start of the writable part. The used length is a promise that everything up
// to there was written (2.7.8.2), so the status byte, the last one, counts only if nothing lies between.
void VirtioBlk::finish(Queue& queue, Request& request, uint8_t status, uint64_t written) {
  *request.status = status;
  if (request.traced != 0) [[unlikely]]
    queue.answered(request, status);
  if (queue.running()) {
    const bool gapless = written + 1 == request.chain.writable_bytes;
    queue.ring().push(request.chain.token, static_cast<uint32_t>(written + gapless));
    queue.pushed();
  }
  give_back(queue, request);
}

void VirtioBlk::give_back(Queue& queue, Request& request) {
  request.traced = 0;
  free_requests_.push_back(&request);
  queue.ended();
}

uint64_t VirtioBlk::answer_id(const BlkRequest& request) const {
  std::array<char, kBlkIdBytes> id{};
  options_.serial.copy(id.data(), id.size());
  uint64_t done = 0;
  for (const iovec& part : request.data) {
    const std::size_t take = std::min<uint64_t>(part.iov_len, id.size() - done);
    std::memcpy(part.iov_base, id.data() + done, take);
    done += take;
  }
  return done;
}

}  // namespace spindle::virtio
