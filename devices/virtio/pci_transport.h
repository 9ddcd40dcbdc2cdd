// PciTransport: a virtio device as a modern PCI function (virtio 1.2, 4.1; 1af4:1040 + type, no legacy part).
//
// One 64-bit memory BAR holds everything:
//
//   0x0000  common configuration (common_config.h)
//   0x0400  ISR status (intx.h)
//   0x0800  device configuration
//   0x1000  notifications, 4 bytes a queue
//   0x2000  MSI-X table (devices/pci/msix.h), one vector a queue and one for configuration changes
//   0x3000  MSI-X pending bits
//
// The vendor capabilities say so to the driver; a fifth one is a window through which firmware reaches the
// BAR by configuration accesses (4.1.4.9).
//
// Each queue has a doorbell. While the BAR decodes, the machine binds it to the queue's notification address;
// whenever the guest moves the BAR or switches decoding, the bindings follow. What the machine cannot bind
// arrives as an ordinary write and rings the same doorbell.
//
// Lifetime: created and destroyed on any thread while no vCPU runs. Between the last vCPU's end and the
// destructor, stop() is awaited on the reactor.
//
// Threading: configuration and BAR accesses from vCPU threads, interrupts from the reactor. Locks, outermost
// first: window, configuration, CommonConfig, then IntxPin or MsiX. Bindings have one that is taken before
// the configuration's.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "devices/bus.h"
#include "devices/pci/msix.h"
#include "devices/pci/pci_function.h"
#include "devices/virtio/common_config.h"
#include "devices/virtio/doorbell.h"
#include "devices/virtio/intx.h"

namespace spindle::virtio {

/// What the machine gives a function. All outlive it.
struct PciWiring {
  MessageRouter& messages;
  InterruptLine& line;
  DoorbellBinder& doorbells;
  /// Tells a person why the driver must reset the device. At most once from one reset to the next, and
  /// PciTransport::kComplaints times in all. Any thread, under a lock: it must not call back.
  std::function<void(std::string_view reason)> complain = nullptr;
};

class PciTransport final : public pci::PciFunction, private Transport, private CommonConfig::Events {
 public:
  static constexpr unsigned kBar = 0;
  /// How often PciWiring::complain is called. A guest may break the rules as often as it likes.
  static constexpr unsigned kComplaints = 10;

  /// `base_class` and `subclass`: what the function says it is (01h, 00h for a disk). `device` runs on
  /// `reactor`; both outlive the function.
  static Result<std::unique_ptr<PciTransport>> create(Device& device, Reactor& reactor, PciWiring wiring,
                                                      uint8_t base_class, uint8_t subclass);
  ~PciTransport() override;

  /// Machine reset. The device gets there on its reactor: await settle() before the memory is reused.
  void reset() override;

  uint8_t status() const { return common_.status(); }
  std::string_view needs_reset_reason() const { return common_.needs_reset_reason(); }

  // ---- the reactor ----
  Task<void> settle() { return common_.settle(); }
  /// Ends what is in flight and lets go of the reactor. Nothing the guest does afterwards has an effect. The
  /// end of the machine is no reset: the disk keeps the cache mode that its guest chose.
  Task<void> stop();

 private:
  class BarHandler final : public IoHandler {
   public:
    explicit BarHandler(PciTransport& owner) : owner_(owner) {}
    void read(uint64_t offset, std::span<uint8_t> data) override { owner_.read_bar(offset, data); }
    std::shared_ptr<ParkedAccess> write(uint64_t offset, std::span<const uint8_t> data) override {
      return owner_.write_bar(offset, data);
    }

   private:
    PciTransport& owner_;
  };
  struct WindowAccess {
    uint32_t offset = 0;
    uint32_t width = 0;
    std::array<uint8_t, 4> bytes{};
  };

  PciTransport(Device& device, Reactor& reactor, PciWiring wiring, uint8_t base_class, uint8_t subclass,
               std::vector<Doorbell> doorbells);
  void add_virtio_capability(uint8_t type, uint32_t offset, uint32_t length);
  void add_notify_capability();
  void add_window_capability();
  void add_msix_capability();

  void read_bar(uint64_t offset, std::span<uint8_t> data);
  std::shared_ptr<ParkedAccess> write_bar(uint64_t offset, std::span<const uint8_t> data);
  std::optional<WindowAccess> window() const;
  void bind_doorbells();

  // PciFunction
  void before_config_read(unsigned offset, unsigned width) override;
  void after_config_write(unsigned offset, unsigned width) override;
  void config_changed() override;
  // Transport
  void interrupt_queue(unsigned queue) override;
  void device_config_changed() override { common_.device_config_changed(); }
  void needs_reset(std::string_view reason) override { common_.mark_needs_reset(reason); }
  // CommonConfig::Events
  void config_interrupt() override;
  void after_reset() override;
  void became_unusable(std::string_view reason) override;

  Device& device_;
  Reactor& reactor_;
  PciWiring wiring_;
  std::vector<Doorbell> doorbells_;
  BarHandler bar_{*this};
  pci::MsiX msix_;
  IntxPin pin_;
  CommonConfig common_;
  unsigned complaints_ = 0;  // under the lock of common_
  unsigned msix_capability_ = 0;
  unsigned window_capability_ = 0;
  std::mutex window_mutex_;
  std::optional<WindowAccess> window_write_;  // under the configuration's lock
  std::mutex binding_mutex_;
  uint64_t bound_at_ = 0;    // address of the first notification register, 0: nothing is bound
  std::vector<bool> bound_;  // by queue
};

}  // namespace spindle::virtio
