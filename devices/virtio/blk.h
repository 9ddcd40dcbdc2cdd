// VirtioBlk: the block device of virtio 1.2, 5.2, over a Disk. It knows no transport.
//
// What is decided here, and nowhere else:
// - the features offered, and the cache mode that follows from those acknowledged (docs/virtio-blk.md has the
//   table): neither FLUSH nor CONFIG_WCE means that the driver cannot make anything durable, so every write
//   is; CONFIG_WCE alone is write-through for good; FLUSH alone the configured mode; with both the driver
//   chooses through `writeback` (D3). Reset goes back to the configured mode (D4).
// - how a request becomes calls of Disk: parse (blk_request.h), execute, finish. A request is one pooled
//   object and one coroutine; in the steady state nothing is allocated.
//
// A turn: a notification only marks the queue and arms its hook. At the end of the reactor's batch the hook
// takes what is available, up to a bound of chains and bytes so that one queue cannot starve the others, and
// starts it. Whatever finished meanwhile, at once or from the ring, is published with one store and one
// decision about an interrupt. If work is left, the hook arms itself for the next turn.
//
// Threading: as device.h says. What read_config() needs of other threads' is atomic.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "block/disk.h"
#include "devices/guest_memory.h"
#include "devices/virtio/blk_request.h"
#include "devices/virtio/device.h"

namespace spindle::virtio {

struct BlkOptions {
  std::string serial;         ///< what GET_ID answers, cut to 20 bytes
  uint32_t queue_size = 256;  ///< largest queue offered: a power of two, 4 to 1024 (the kernel's IOV_MAX)
  unsigned queues = 1;
  bool packed = false;  ///< offer packed rings
};

class VirtioBlk final : public Device {
 public:
  static constexpr uint16_t kType = 2;

  /// `disk` and `memory` outlive the device. Invalid options are answered with an error that names them.
  static Result<std::unique_ptr<VirtioBlk>> create(Disk& disk, const GuestMemory& memory, BlkOptions options);
  ~VirtioBlk() override;

  uint16_t type() const override { return kType; }
  unsigned queue_count() const override { return static_cast<unsigned>(queues_.size()); }
  uint32_t max_queue_size() const override { return options_.queue_size; }
  uint64_t features() const override;
  bool acknowledge(uint64_t features) override;
  uint32_t config_bytes() const override { return sizeof(BlkConfig); }
  void read_config(uint64_t offset, std::span<uint8_t> data) const override;
  bool config_writable(uint64_t offset, std::size_t width) const override;
  std::string_view check_queue(const QueueLayout& layout) const override;

  void connect(Transport& transport) override { transport_ = &transport; }
  Task<void> negotiate() override;
  std::string_view start_queue(unsigned queue, const QueueLayout& layout) override;
  Task<void> reset_queue(unsigned queue) override;
  void notify(unsigned queue) override;
  Task<Result<>> write_config(uint64_t offset, std::span<const uint8_t> data) override;
  Task<void> stop() override;
  Task<void> reset() override;

  /// The disk's size or write cache was changed by somebody other than the driver. The reactor.
  void config_changed() { transport_->device_config_changed(); }
  /// The guest stops: until resume() no request is taken, whatever the queues hold. What was taken goes on. A
  /// guest that stands still can make requests all the same, by reads into its own queue, so a stop that took
  /// them would have no end. The reactor.
  void suspend() { suspended_ = true; }
  void resume();
  /// Requests taken and not yet given back.
  uint64_t in_flight() const;

 private:
  struct Request;
  class Queue;

  VirtioBlk(Disk& disk, const GuestMemory& memory, BlkOptions options);
  Request& take_request();
  void serve(Queue& queue, Request& request);
  void serve_write_zeroes(Queue& queue, Request& request, bool unmap);
  template <typename Operation>
  Detached run(Queue& queue, Request& request, Operation operation, uint64_t written);
  void finish(Queue& queue, Request& request, uint8_t status, uint64_t written);
  void give_back(Queue& queue, Request& request);
  RingFeatures ring_features() const;
  uint64_t answer_id(const BlkRequest& request) const;
  bool acknowledged(uint64_t feature) const {
    return acknowledged_.load(std::memory_order_acquire) & feature;
  }

  Disk& disk_;
  const GuestMemory& memory_;
  BlkOptions options_;
  Transport* transport_ = nullptr;
  std::atomic<uint64_t> acknowledged_{0};
  bool suspended_ = false;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::vector<std::unique_ptr<Request>> requests_;  // all there are
  std::vector<Request*> free_requests_;
};

}  // namespace spindle::virtio
