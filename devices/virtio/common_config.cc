#include "devices/virtio/common_config.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace spindle::virtio {
namespace {

struct Registers {
  uint32_t device_feature_select;
  uint32_t device_feature;
  uint32_t driver_feature_select;
  uint32_t driver_feature;
  uint16_t config_msix_vector;
  uint16_t num_queues;
  uint8_t device_status;
  uint8_t config_generation;
  uint16_t queue_select;
  uint16_t queue_size;
  uint16_t queue_msix_vector;
  uint16_t queue_enable;
  uint16_t queue_notify_off;
  uint64_t queue_desc;
  uint64_t queue_driver;
  uint64_t queue_device;
  uint16_t queue_notify_data;  // belongs to a feature that is not offered
  uint16_t queue_reset;
  uint32_t padding;
};
static_assert(offsetof(Registers, padding) == common::kBytes);

uint32_t half(uint64_t features, uint32_t select) {
  return select < 2 ? static_cast<uint32_t>(features >> (32 * select)) : 0;
}

// Writes all of a 64-bit register, or one half of it.
void write_address(uint64_t& address, unsigned offset, unsigned width, uint64_t value) {
  if (width == 8 && offset == 0) address = value;
  if (width == 4 && offset == 0) address = (address & ~0xffffffffull) | value;
  if (width == 4 && offset == 4) address = (address & 0xffffffffull) | value << 32;
}

}  // namespace

CommonConfig::CommonConfig(Device& device, Reactor& reactor, unsigned vectors, Events& events)
    : device_(device), events_(events), vectors_(vectors), tasks_(reactor), queues_(device.queue_count()) {
  clear();
}

void CommonConfig::read(uint64_t offset, std::span<uint8_t> data) {
  std::fill(data.begin(), data.end(), uint8_t{0});
  if (offset >= common::kBytes) return;
  std::lock_guard lock(mutex_);
  Registers registers{
      .device_feature_select = device_feature_select_,
      .device_feature = half(device_.features(), device_feature_select_),
      .driver_feature_select = driver_feature_select_,
      .driver_feature = half(driver_features_, driver_feature_select_),
      .config_msix_vector = config_vector(),
      .num_queues = static_cast<uint16_t>(queues_.size()),
      .device_status = status_,
      .config_generation = generation_,
      .queue_select = queue_select_,
  };
  if (queue_select_ < queues_.size()) {  // a queue that does not exist has size 0 (4.1.4.3.1)
    const QueueRegisters& queue = queues_[queue_select_];
    registers.queue_size = static_cast<uint16_t>(queue.layout.size);
    registers.queue_msix_vector = queue_vector(queue_select_);
    registers.queue_enable = queue.enabled;
    registers.queue_notify_off = queue_select_;
    registers.queue_desc = queue.layout.descriptors;
    registers.queue_driver = queue.layout.driver_area;
    registers.queue_device = queue.layout.device_area;
    registers.queue_reset = queue.resetting;
  }
  std::memcpy(data.data(), reinterpret_cast<const uint8_t*>(&registers) + offset,
              std::min<uint64_t>(data.size(), common::kBytes - offset));
}

void CommonConfig::write(uint64_t offset, std::span<const uint8_t> data) {
  uint64_t value = 0;
  if (offset >= common::kBytes || data.size() > sizeof value) return;
  std::memcpy(&value, data.data(), data.size());
  const auto at = static_cast<unsigned>(offset);
  const auto width = static_cast<unsigned>(data.size());
  const auto is = [at, width](unsigned field, unsigned bytes) { return at == field && width == bytes; };

  std::lock_guard lock(mutex_);
  if (resetting_ || stopped_) return;
  if (is(common::kDeviceFeatureSelect, 4)) {
    device_feature_select_ = static_cast<uint32_t>(value);
  } else if (is(common::kDriverFeatureSelect, 4)) {
    driver_feature_select_ = static_cast<uint32_t>(value);
  } else if (is(common::kDriverFeature, 4)) {
    write_driver_feature(static_cast<uint32_t>(value));
  } else if (is(common::kConfigMsixVector, 2)) {
    config_vector_ = value < vectors_ ? static_cast<uint16_t>(value) : kNoVector;
  } else if (is(common::kDeviceStatus, 1)) {
    write_status(static_cast<uint8_t>(value));
  } else if (is(common::kQueueSelect, 2)) {
    queue_select_ = static_cast<uint16_t>(value);
  } else if (at >= common::kQueueSize) {
    write_queue(at, width, value);
  }
}

void CommonConfig::write_driver_feature(uint32_t value) {
  if (status_ & kStatusFeaturesOk) return;  // 3.1.1: nothing is accepted any more
  if (driver_feature_select_ >= 2) {
    unknown_features_ |= value != 0;
    return;
  }
  const unsigned shift = 32 * driver_feature_select_;
  driver_features_ = (driver_features_ & ~(0xffffffffull << shift)) | uint64_t{value} << shift;
}

void CommonConfig::write_queue(unsigned offset, unsigned width, uint64_t value) {
  if (queue_select_ >= queues_.size()) return;
  QueueRegisters& queue = queues_[queue_select_];
  if (queue.resetting) return;
  if (offset == common::kQueueReset && width == 2) {
    if (value == 1) begin_queue_reset();
    return;
  }
  if (offset == common::kQueueMsixVector && width == 2) {
    queue.vector = value < vectors_ ? static_cast<uint16_t>(value) : kNoVector;
    return;
  }
  if (queue.enabled) return;
  if (offset == common::kQueueSize && width == 2) {
    queue.layout.size = static_cast<uint32_t>(value);
  } else if (offset == common::kQueueEnable && width == 2) {
    if (value == 1) enable_queue();
  } else if (offset >= common::kQueueNotifyData) {
    return;  // read only
  } else if (offset >= common::kQueueDevice) {
    write_address(queue.layout.device_area, offset - common::kQueueDevice, width, value);
  } else if (offset >= common::kQueueDriver) {
    write_address(queue.layout.driver_area, offset - common::kQueueDriver, width, value);
  } else if (offset >= common::kQueueDesc) {
    write_address(queue.layout.descriptors, offset - common::kQueueDesc, width, value);
  }
}

void CommonConfig::enable_queue() {
  QueueRegisters& queue = queues_[queue_select_];
  if (const auto wrong = device_.check_queue(queue.layout); !wrong.empty()) {
    note_needs_reset(wrong);
    return;
  }
  queue.enabled = true;
  if (status_ & kStatusDriverOk) start_queues({{queue_select_, queue.layout}});
}

void CommonConfig::begin_queue_reset() {
  if (!(status_ & kStatusFeaturesOk) || !(driver_features_ & kFeatureRingReset)) return;
  QueueRegisters& queue = queues_[queue_select_];
  if (!queue.enabled) {  // nothing to wait for
    clear_queue(queue);
    return;
  }
  queue.resetting = true;
  post([this, queue = queue_select_] { return do_queue_reset(queue); });
}

Task<void> CommonConfig::do_queue_reset(unsigned queue) {
  co_await device_.reset_queue(queue);
  std::lock_guard lock(mutex_);
  if (!resetting_) clear_queue(queues_[queue]);  // else do_reset() will
}

void CommonConfig::write_status(uint8_t value) {
  if (value == 0) {
    begin_reset();
    return;
  }
  // Bits are only ever added by the driver; NEEDS_RESET is the device's own.
  const auto added = static_cast<uint8_t>(value & ~status_);
  status_ |= added & (kStatusAcknowledge | kStatusDriver | kStatusFailed);
  if ((added & kStatusFeaturesOk) && !unknown_features_ && device_.acknowledge(driver_features_)) {
    status_ |= kStatusFeaturesOk;
    post([this] { return device_.negotiate(); });
  }
  if ((added & kStatusDriverOk) && (status_ & kStatusFeaturesOk)) {
    status_ |= kStatusDriverOk;
    std::vector<QueueStart> starts;
    for (unsigned i = 0; i < queues_.size(); ++i) {
      if (queues_[i].enabled && !queues_[i].resetting) starts.emplace_back(i, queues_[i].layout);
    }
    start_queues(std::move(starts));
  }
}

void CommonConfig::start_queues(std::vector<QueueStart> starts) {
  post([this, starts = std::move(starts)] { return do_start(starts); });
}

Task<void> CommonConfig::do_start(std::vector<QueueStart> starts) {
  for (const auto& [queue, layout] : starts) {
    if (const auto wrong = device_.start_queue(queue, layout); !wrong.empty()) mark_needs_reset(wrong);
  }
  co_return;
}

std::shared_ptr<ParkedAccess> CommonConfig::write_device_config(uint64_t offset,
                                                                std::span<const uint8_t> data) {
  std::array<uint8_t, 8> bytes{};
  if (data.size() > bytes.size()) return nullptr;
  std::lock_guard lock(mutex_);
  if (resetting_ || stopped_ || !(status_ & kStatusFeaturesOk)) return nullptr;
  if (!device_.config_writable(offset, data.size()) || config_writes_ == kConfigWrites) return nullptr;
  ++config_writes_;
  std::copy(data.begin(), data.end(), bytes.begin());
  auto parked = std::make_shared<ParkedAccess>();
  post([this, offset, bytes, width = data.size(), parked] {
    return do_write_device_config(offset, bytes, width, parked);
  });
  return parked;
}

// Over PCI a configuration write has no status: the driver learns of a failure by reading the field back.
Task<void> CommonConfig::do_write_device_config(uint64_t offset, std::array<uint8_t, 8> bytes,
                                                std::size_t width, std::shared_ptr<ParkedAccess> parked) {
  const std::span<const uint8_t> data(bytes.data(), width);
  if (!dropping()) co_await device_.write_config(offset, data);
  {
    std::lock_guard lock(mutex_);
    --config_writes_;
  }
  parked->finish();
}

// A reset waits behind whatever was posted before it, so this is true of all that it overtakes.
bool CommonConfig::dropping() const {
  std::lock_guard lock(mutex_);
  return resetting_ || stopped_;
}

void CommonConfig::reset() {
  std::lock_guard lock(mutex_);
  if (!resetting_ && !stopped_) begin_reset();
}

void CommonConfig::begin_reset() {
  if (!used_) {  // only registers were written: nothing to wait for
    events_.after_reset();
    clear();
    return;
  }
  resetting_ = true;
  post([this] { return do_reset(); });
}

Task<void> CommonConfig::do_reset() {
  co_await device_.reset();
  std::lock_guard lock(mutex_);
  events_.after_reset();
  clear();
}

void CommonConfig::clear() {
  device_feature_select_ = driver_feature_select_ = 0;
  driver_features_ = 0;
  unknown_features_ = false;
  status_ = 0;
  queue_select_ = 0;
  for (QueueRegisters& queue : queues_) clear_queue(queue);
  config_vector_ = kNoVector;
  used_ = resetting_ = false;
}

void CommonConfig::clear_queue(QueueRegisters& queue) {
  queue.layout = QueueLayout{.size = device_.max_queue_size()};
  queue.enabled = queue.resetting = false;
  queue.vector = kNoVector;
}

void CommonConfig::note_needs_reset(std::string_view reason) {
  needs_reset_reason_ = reason;
  if (resetting_ || (status_ & kStatusNeedsReset)) return;
  status_ |= kStatusNeedsReset;
  events_.became_unusable(reason);
  if (status_ & kStatusDriverOk) events_.config_interrupt();  // 2.1.2
}

void CommonConfig::mark_needs_reset(std::string_view reason) {
  std::lock_guard lock(mutex_);
  note_needs_reset(reason);
}

void CommonConfig::device_config_changed() {
  std::lock_guard lock(mutex_);
  ++generation_;
  if (status_ & kStatusDriverOk) events_.config_interrupt();
}

uint8_t CommonConfig::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

std::string_view CommonConfig::needs_reset_reason() const {
  std::lock_guard lock(mutex_);
  return needs_reset_reason_;
}

void CommonConfig::post(std::function<Task<void>()> make) {
  used_ = true;
  tasks_.post(std::move(make));
}

Task<void> CommonConfig::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    tasks_.post([this] { return device_.stop(); });
  }
  co_await tasks_.idle();
}

}  // namespace spindle::virtio
