// CommonConfig: the common configuration structure (virtio 1.2, 4.1.4.3) as a driver sees it, and the device
// status state machine behind it (2.1, 3.1).
//
// vCPU threads read and write registers here under one lock and never wait: whatever may take time is handed
// to the reactor (SerialTasks) and happens there in the order of the register writes:
//
//   FEATURES_OK      checked at once (the bit reads back 0 if refused), then Device::negotiate
//   DRIVER_OK        the enabled queues start, after negotiate has ended
//   queue_enable     the ring is checked at once; after DRIVER_OK the queue also starts
//   queue_reset      Device::reset_queue, if RING_RESET was acknowledged. It reads 1, queue_enable as before,
//   and
//                    writes of the queue's registers are ignored, until nothing of the queue is in flight;
//                    then both read 0 and the queue may be enabled anew, with another layout (4.1.4.3.1)
//   status = 0       Device::reset. The status reads as before, and every write is ignored, until the device
//                    is idle and back in its first state; then it reads 0 (2.4.1)
//
// A driver may do all this in any order and at any moment; what is out of order is ignored.
//
// What waits there is bounded. Of the device's configuration, the one thing that may be written again and
// again without waiting (4.1.4.9, a window that parks nobody), at most kConfigWrites writes are outstanding.
// A reset drops those that have not begun: what they would have set, it sets itself.
//
// Threading: any thread, but what is marked. Events are called with the lock held and must not call back,
// except for the vectors, which are atomic.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "devices/bus.h"
#include "devices/virtio/device.h"
#include "devices/virtio/serial_tasks.h"

namespace spindle::virtio {

class CommonConfig {
 public:
  /// Writes of the device's configuration that may be outstanding; more than a machine has vCPUs to park.
  static constexpr unsigned kConfigWrites = 16;

  class Events {
   public:
    /// A configuration change notification is due.
    virtual void config_interrupt() = 0;
    /// The device was reset; its status is about to read 0.
    virtual void after_reset() = 0;
    /// NEEDS_RESET was set: once at most from one reset to the next.
    virtual void became_unusable(std::string_view reason) = 0;

   protected:
    ~Events() = default;
  };

  /// `vectors`: how many interrupt vectors the driver may choose from.
  CommonConfig(Device& device, Reactor& reactor, unsigned vectors, Events& events);

  void read(uint64_t offset, std::span<uint8_t> data);
  /// Only accesses of a whole field, or of half a 64-bit one, do anything (4.1.3.1).
  void write(uint64_t offset, std::span<const uint8_t> data);
  /// Null if nothing is to be waited for; else the access ends when the write has taken effect or a reset has
  /// dropped it. With kConfigWrites outstanding a write is ignored: the field reads back what it was.
  std::shared_ptr<ParkedAccess> write_device_config(uint64_t offset, std::span<const uint8_t> data);
  /// The same as a driver's reset.
  void reset();
  void mark_needs_reset(std::string_view reason);
  /// The device's configuration changed by itself: a new generation, and the driver is told.
  void device_config_changed();

  uint16_t config_vector() const { return config_vector_.load(std::memory_order_relaxed); }
  uint16_t queue_vector(unsigned queue) const {
    return queues_[queue].vector.load(std::memory_order_relaxed);
  }
  uint8_t status() const;
  /// Why NEEDS_RESET was last set; empty if never.
  std::string_view needs_reset_reason() const;

  // ---- the reactor ----
  /// Returns when all that drivers asked for so far has been done.
  Task<void> settle() { return tasks_.idle(); }
  /// The end: Device::stop(). Nothing that a driver does afterwards has an effect.
  Task<void> stop();

 private:
  struct QueueRegisters {
    QueueLayout layout;
    bool enabled = false;
    bool resetting = false;
    std::atomic<uint16_t> vector{kNoVector};
  };
  using QueueStart = std::pair<unsigned, QueueLayout>;

  void write_driver_feature(uint32_t value);
  void write_status(uint8_t value);
  void write_queue(unsigned offset, unsigned width, uint64_t value);
  void enable_queue();
  void begin_queue_reset();
  void start_queues(std::vector<QueueStart> starts);
  void begin_reset();
  void clear();
  void clear_queue(QueueRegisters& queue);
  bool dropping() const;
  void note_needs_reset(std::string_view reason);
  void post(std::function<Task<void>()> make);

  Task<void> do_start(std::vector<QueueStart> starts);
  Task<void> do_write_device_config(uint64_t offset, std::array<uint8_t, 8> bytes, std::size_t width,
                                    std::shared_ptr<ParkedAccess> parked);
  Task<void> do_queue_reset(unsigned queue);
  Task<void> do_reset();

  Device& device_;
  Events& events_;
  const unsigned vectors_;
  SerialTasks tasks_;

  mutable std::mutex mutex_;
  uint32_t device_feature_select_ = 0;
  uint32_t driver_feature_select_ = 0;
  uint64_t driver_features_ = 0;
  bool unknown_features_ = false;  // a bit beyond the 64 that exist was acknowledged
  uint8_t status_ = 0;
  uint8_t generation_ = 0;
  uint16_t queue_select_ = 0;
  std::vector<QueueRegisters> queues_;
  std::atomic<uint16_t> config_vector_{kNoVector};
  bool used_ = false;  // since its last reset the device was asked for something
  bool resetting_ = false;
  bool stopped_ = false;
  unsigned config_writes_ = 0;  // outstanding
  std::string_view needs_reset_reason_;
};

}  // namespace spindle::virtio
