// The seam between a virtio device and its transport.
//
// A device type (blk.h) knows its features, its configuration space and what its queues mean; a transport
// (PCI, later vhost-user) knows how a driver reaches it. Either can be replaced without the other noticing.
//
// Order of calls on the reactor, kept by the transport, one at a time and each awaited before the next
// begins:
//   negotiate  ->  start_queue...  ->  (write_config | start_queue | reset_queue)...  ->  reset  -> negotiate
//   ...
// and stop, when the machine ends, after any of them.
// notify() may come at any time, for any queue number, also for queues that do not run.
//
// Threading: Device's upper part is for any thread, the rest for the reactor. Transport's verbs are called on
// the reactor.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "block/io/task.h"
#include "block/result.h"
#include "devices/virtio/virtqueue.h"

namespace spindle::virtio {

/// What a device asks of whoever connects it to a driver.
class Transport {
 public:
  /// Used buffers were published and the driver wants to know.
  virtual void interrupt_queue(unsigned queue) = 0;
  /// The configuration space changed by itself.
  virtual void device_config_changed() = 0;
  /// The driver broke the rules so that the device cannot go on: DEVICE_NEEDS_RESET (2.1.2). `reason` is a
  /// sentence that stays valid.
  virtual void needs_reset(std::string_view reason) = 0;

 protected:
  ~Transport() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  // ---- any thread ----
  virtual uint16_t type() const = 0;
  virtual unsigned queue_count() const = 0;
  virtual uint32_t max_queue_size() const = 0;
  virtual uint64_t features() const = 0;
  /// The driver sets FEATURES_OK: true if the device can work with what was acknowledged, a subset of
  /// features(). From then on read_config() answers accordingly.
  virtual bool acknowledge(uint64_t features) = 0;
  virtual uint32_t config_bytes() const = 0;
  /// Bytes beyond config_bytes() read as zero.
  virtual void read_config(uint64_t offset, std::span<uint8_t> data) const = 0;
  /// Whether a write there could change anything now. If not, it is ignored at once.
  virtual bool config_writable(uint64_t offset, std::size_t width) const = 0;
  virtual std::string_view check_queue(const QueueLayout& layout) const = 0;

  // ---- the reactor ----
  /// Before the first call of anything below.
  virtual void connect(Transport& transport) = 0;
  /// Acts on the features acknowledged. Returns when the device is ready for its queues to start.
  virtual Task<void> negotiate() = 0;
  /// Begins to serve a queue, and looks at it at once. Returns what check_queue() says.
  virtual std::string_view start_queue(unsigned queue, const QueueLayout& layout) = 0;
  /// Stops one queue, as stop() does all; the others go on. It may be started again, somewhere else. A queue
  /// that does not run is left alone.
  virtual Task<void> reset_queue(unsigned queue) = 0;
  virtual void notify(unsigned queue) = 0;
  /// Only for what config_writable() lets through. Returns when the write has taken effect; an error means
  /// that it has not.
  virtual Task<Result<>> write_config(uint64_t offset, std::span<const uint8_t> data) = 0;
  /// Stops all queues and waits for what is in flight: its data still moves, its used elements do not. No
  /// guest memory is touched after it returned. What the driver has chosen stays as it is.
  virtual Task<void> stop() = 0;
  /// stop(), and back to the state of power-on.
  virtual Task<void> reset() = 0;
};

}  // namespace spindle::virtio
