// The machine around a virtio PCI function, in process: interrupts and doorbells that are recorded, and a
// driver that finds the function's structures through its capabilities as a guest does.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "devices/bus.h"
#include "devices/pci/msix.h"
#include "devices/pci/pci_function.h"
#include "devices/virtio/spec.h"
#include "devices/virtio/virtqueue.h"

namespace spindle::virtio::test {

/// Any thread.
class TestMachine final : public MessageRouter, public InterruptLine, public DoorbellBinder {
 public:
  void route(unsigned vector, uint64_t, uint32_t data) override {
    std::lock_guard lock(mutex_);
    routes_[vector] = data;
  }
  void signal(unsigned vector) override {
    std::lock_guard lock(mutex_);
    ++messages_[routes_.at(vector)];
  }
  void set_level(bool asserted) override {
    std::lock_guard lock(mutex_);
    level_ = asserted;
  }
  bool bind(uint64_t address, unsigned width, int fd) override {
    std::lock_guard lock(mutex_);
    if (refuse_) return false;
    doorbells_[address] = {width, fd};
    return true;
  }
  void unbind(uint64_t address, unsigned width, int fd) override {
    std::lock_guard lock(mutex_);
    const auto at = doorbells_.find(address);
    bad_unbinds_ += at == doorbells_.end() || at->second != std::pair(width, fd);
    if (at != doorbells_.end()) doorbells_.erase(at);
  }

  void refuse_doorbells() { refuse_ = true; }
  std::map<uint64_t, std::pair<unsigned, int>> doorbells() const {
    std::lock_guard lock(mutex_);
    return doorbells_;
  }
  unsigned bad_unbinds() const { return bad_unbinds_; }
  bool level() const {
    std::lock_guard lock(mutex_);
    return level_;
  }
  /// How many messages with this data were sent.
  unsigned messages(uint32_t data) const {
    std::lock_guard lock(mutex_);
    const auto at = messages_.find(data);
    return at == messages_.end() ? 0 : at->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<unsigned, uint32_t> routes_;
  std::map<uint32_t, unsigned> messages_;
  std::map<uint64_t, std::pair<unsigned, int>> doorbells_;
  unsigned bad_unbinds_ = 0;
  bool level_ = false;
  bool refuse_ = false;
};

/// What a driver does with a virtio PCI function. Any thread, one at a time for what it selects.
class PciDriver {
 public:
  struct Structure {
    unsigned capability = 0;  ///< offset in configuration space
    uint32_t offset = 0;
    uint32_t length = 0;
  };

  explicit PciDriver(pci::PciFunction& function) : function_(function) {
    for (unsigned at = config(pci::kCapabilitiesPointer, 1); at != 0; at = config(at + 1, 1)) {
      if (config(at, 1) == pci::kMsixCapability) msix = {at, config(at + 4, 4), config(at + 8, 4)};
      if (config(at, 1) != kPciCapVendor) continue;
      const uint32_t type = config(at + 3, 1);
      if (type < structures_.size()) structures_[type] = {at, config(at + 8, 4), config(at + 12, 4)};
    }
  }

  uint32_t config(unsigned offset, unsigned width) { return function_.read_config(offset, width); }
  void set_config(unsigned offset, unsigned width, uint32_t value) {
    function_.write_config(offset, width, value);
  }
  const Structure& structure(uint8_t type) const { return structures_[type]; }

  uint64_t read(uint64_t offset, unsigned width) {
    uint64_t value = 0;
    bar()->read(offset, {reinterpret_cast<uint8_t*>(&value), width});
    return value;
  }
  std::shared_ptr<ParkedAccess> write(uint64_t offset, unsigned width, uint64_t value) {
    return bar()->write(offset, {reinterpret_cast<const uint8_t*>(&value), width});
  }
  uint64_t common(unsigned field, unsigned width) {
    return read(structures_[kPciCapCommon].offset + field, width);
  }
  void set_common(unsigned field, unsigned width, uint64_t value) {
    CHECK(write(structures_[kPciCapCommon].offset + field, width, value) == nullptr);
  }
  uint8_t status() { return static_cast<uint8_t>(common(common::kDeviceStatus, 1)); }
  void set_status(uint8_t value) { set_common(common::kDeviceStatus, 1, value); }
  void add_status(uint8_t bits) { set_status(status() | bits); }
  uint8_t isr() { return static_cast<uint8_t>(read(structures_[kPciCapIsr].offset, 1)); }
  uint8_t writeback() {
    return static_cast<uint8_t>(read(structures_[kPciCapDevice].offset + kBlkConfigWriteback, 1));
  }
  std::shared_ptr<ParkedAccess> set_writeback(uint8_t value) {
    return write(structures_[kPciCapDevice].offset + kBlkConfigWriteback, 1, value);
  }

  /// Turns decoding and bus mastering on, with the BAR at `address`.
  void map(uint64_t address) {
    function_.assign_bar(0, address);
    set_config(pci::kCommand, 2, pci::kCommandMemory | pci::kCommandBusMaster);
  }
  uint64_t offered() {
    set_common(common::kDeviceFeatureSelect, 4, 1);
    const uint64_t high = common(common::kDeviceFeature, 4);
    set_common(common::kDeviceFeatureSelect, 4, 0);
    return high << 32 | common(common::kDeviceFeature, 4);
  }
  /// Up to FEATURES_OK. False if the device refuses.
  bool negotiate(uint64_t features) {
    add_status(kStatusAcknowledge);
    add_status(kStatusDriver);
    for (unsigned i = 0; i < 2; ++i) {
      set_common(common::kDriverFeatureSelect, 4, i);
      set_common(common::kDriverFeature, 4, static_cast<uint32_t>(features >> (32 * i)));
    }
    add_status(kStatusFeaturesOk);
    return status() & kStatusFeaturesOk;
  }
  /// False if the device does not take the queue.
  bool set_queue(uint16_t index, const QueueLayout& layout, uint16_t vector = kNoVector) {
    set_common(common::kQueueSelect, 2, index);
    set_common(common::kQueueSize, 2, layout.size);
    set_common(common::kQueueMsixVector, 2, vector);
    const std::pair<unsigned, uint64_t> addresses[] = {{common::kQueueDesc, layout.descriptors},
                                                       {common::kQueueDriver, layout.driver_area},
                                                       {common::kQueueDevice, layout.device_area}};
    for (const auto& [field, address] : addresses) {
      set_common(field, 4, static_cast<uint32_t>(address));
      set_common(field + 4, 4, address >> 32);
    }
    set_common(common::kQueueEnable, 2, 1);
    return common(common::kQueueEnable, 2) == 1;
  }
  void reset_queue(uint16_t index) {
    set_common(common::kQueueSelect, 2, index);
    set_common(common::kQueueReset, 2, 1);
  }
  uint64_t notify_offset(uint16_t queue) {
    set_common(common::kQueueSelect, 2, queue);
    const Structure& notify = structures_[kPciCapNotify];
    return notify.offset + common(common::kQueueNotifyOff, 2) * config(notify.capability + 16, 4);
  }
  void set_vector(unsigned vector, uint32_t data, bool masked) {
    const uint64_t entry = (msix.offset & ~7u) + 16 * vector;
    write(entry, 4, 0xfee00000);
    write(entry + 4, 4, 0);
    write(entry + 8, 4, data);
    write(entry + 12, 4, masked);
  }

  Structure msix;  ///< capability, table and (as length) pending bits, with their BAR numbers

 private:
  IoHandler* bar() {
    for (const pci::BarMapping& mapping : function_.mappings()) {
      if (mapping.index == 0) return mapping.handler;
    }
    std::abort();
  }

  pci::PciFunction& function_;
  std::array<Structure, 6> structures_{};
};

}  // namespace spindle::virtio::test
