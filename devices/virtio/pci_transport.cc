#include "devices/virtio/pci_transport.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <utility>

namespace spindle::virtio {
namespace {

constexpr uint64_t kIsrOffset = 0x0400;
constexpr uint64_t kDeviceOffset = 0x0800;
constexpr uint64_t kNotifyOffset = 0x1000;
constexpr uint64_t kTableOffset = 0x2000;
constexpr uint64_t kPendingOffset = 0x3000;
constexpr uint64_t kBarBytes = 0x4000;

constexpr uint32_t kNotifyMultiplier = 4;
constexpr unsigned kNotifyWidth = 2;  // the driver writes the queue's number

// One vector for each queue and one for configuration changes must fit the table's page.
constexpr unsigned kMaxQueues = (kPendingOffset - kTableOffset) / pci::MsiX::kEntryBytes - 1;

// struct virtio_pci_cap (4.1.4) and its two longer forms.
constexpr unsigned kCapBytes = 16;
constexpr unsigned kCapLongBytes = 20;
constexpr unsigned kCapLength = 2;
constexpr unsigned kCapType = 3;
constexpr unsigned kCapBar = 4;
constexpr unsigned kCapOffset = 8;
constexpr unsigned kCapRegionLength = 12;
constexpr unsigned kCapExtra = 16;  // notify_off_multiplier, or pci_cfg_data

// The MSI-X capability.
constexpr unsigned kMsixControl = 2;
constexpr unsigned kMsixTable = 4;
constexpr unsigned kMsixPending = 8;

bool touches(unsigned offset, unsigned width, unsigned field, unsigned bytes) {
  return offset < field + bytes && field < offset + width;
}

pci::Identity identity_of(uint16_t type, uint8_t base_class, uint8_t subclass) {
  // 4.1.2.1: a device without a legacy part has revision 1 or higher and a subsystem id of 40h or higher.
  const auto device = static_cast<uint16_t>(kPciDeviceBase + type);
  return {.vendor = kPciVendor,
          .device = device,
          .revision = 1,
          .base_class = base_class,
          .subclass = subclass,
          .subsystem_vendor = kPciVendor,
          .subsystem = static_cast<uint16_t>(0x40 + type),
          .interrupt_pin = 1};
}

}  // namespace

Result<std::unique_ptr<PciTransport>> PciTransport::create(Device& device, Reactor& reactor, PciWiring wiring,
                                                           uint8_t base_class, uint8_t subclass) {
  if (device.queue_count() > kMaxQueues)
    return std::unexpected(Error::invalid("virtio-pci", "", "the device has too many queues"));
  std::vector<Doorbell> doorbells;
  for (unsigned i = 0; i < device.queue_count(); ++i) {
    auto doorbell = Doorbell::create();
    if (!doorbell) return std::unexpected(std::move(doorbell.error()));
    doorbells.push_back(std::move(*doorbell));
  }
  return std::unique_ptr<PciTransport>(
      new PciTransport(device, reactor, std::move(wiring), base_class, subclass, std::move(doorbells)));
}

PciTransport::PciTransport(Device& device, Reactor& reactor, PciWiring wiring, uint8_t base_class,
                           uint8_t subclass, std::vector<Doorbell> doorbells)
    : PciFunction(identity_of(device.type(), base_class, subclass)),
      device_(device),
      reactor_(reactor),
      wiring_(std::move(wiring)),
      doorbells_(std::move(doorbells)),
      msix_(device.queue_count() + 1, wiring_.messages),
      pin_(wiring_.line),
      common_(device, reactor, device.queue_count() + 1, *this),
      bound_(doorbells_.size()) {
  add_bar(kBar, pci::BarKind::Memory64, kBarBytes, &bar_);
  add_msix_capability();
  add_window_capability();
  add_virtio_capability(kPciCapDevice, kDeviceOffset, device.config_bytes());
  add_virtio_capability(kPciCapIsr, kIsrOffset, 1);
  add_notify_capability();
  add_virtio_capability(kPciCapCommon, 0, common::kBytes);
  device.connect(*this);
  reactor.post([this] {
    for (unsigned i = 0; i < doorbells_.size(); ++i) {
      reactor_.watch(doorbells_[i].fd(), [this, i] { device_.notify(i); });
    }
  });
}

PciTransport::~PciTransport() {
  std::lock_guard lock(binding_mutex_);
  for (unsigned i = 0; i < bound_.size(); ++i) {
    if (bound_[i])
      wiring_.doorbells.unbind(bound_at_ + kNotifyMultiplier * i, kNotifyWidth, doorbells_[i].fd());
  }
}

Task<void> PciTransport::stop() {
  co_await common_.stop();
  for (const Doorbell& doorbell : doorbells_) reactor_.unwatch(doorbell.fd());
}

void PciTransport::add_virtio_capability(uint8_t type, uint32_t offset, uint32_t length) {
  const unsigned cap = add_capability(kPciCapVendor, kCapBytes);
  set8(cap + kCapLength, kCapBytes);
  set8(cap + kCapType, type);
  set8(cap + kCapBar, kBar);
  set32(cap + kCapOffset, offset);
  set32(cap + kCapRegionLength, length);
}

void PciTransport::add_notify_capability() {
  const unsigned cap = add_capability(kPciCapVendor, kCapLongBytes);
  set8(cap + kCapLength, kCapLongBytes);
  set8(cap + kCapType, kPciCapNotify);
  set8(cap + kCapBar, kBar);
  set32(cap + kCapOffset, kNotifyOffset);
  set32(cap + kCapRegionLength, kNotifyMultiplier * static_cast<uint32_t>(doorbells_.size()));
  set32(cap + kCapExtra, kNotifyMultiplier);
}

void PciTransport::add_window_capability() {
  window_capability_ = add_capability(kPciCapVendor, kCapLongBytes);
  set8(window_capability_ + kCapLength, kCapLongBytes);
  set8(window_capability_ + kCapType, kPciCapPci);
  set_writable(window_capability_ + kCapBar, 1, 0xff);
  for (unsigned field : {kCapOffset, kCapRegionLength, kCapExtra})
    set_writable(window_capability_ + field, 4, 0xffffffff);
}

void PciTransport::add_msix_capability() {
  msix_capability_ = add_capability(pci::kMsixCapability, pci::kMsixCapabilityBytes);
  set16(msix_capability_ + kMsixControl, static_cast<uint16_t>(msix_.vectors() - 1));
  set32(msix_capability_ + kMsixTable, kTableOffset | kBar);
  set32(msix_capability_ + kMsixPending, kPendingOffset | kBar);
  set_writable(msix_capability_ + kMsixControl, 2, pci::kMsixEnable | pci::kMsixFunctionMask);
}

void PciTransport::read_bar(uint64_t offset, std::span<uint8_t> data) {
  if (offset >= kPendingOffset) {
    msix_.read_pending(offset - kPendingOffset, data);
  } else if (offset >= kTableOffset) {
    msix_.read_table(offset - kTableOffset, data);
  } else if (offset >= kDeviceOffset && offset < kNotifyOffset) {
    device_.read_config(offset - kDeviceOffset, data);
  } else if (offset < kIsrOffset) {
    common_.read(offset, data);
  } else {
    std::fill(data.begin(), data.end(), uint8_t{0});
    if (offset == kIsrOffset) data[0] = pin_.read_and_clear();
  }
}

std::shared_ptr<ParkedAccess> PciTransport::write_bar(uint64_t offset, std::span<const uint8_t> data) {
  if (offset >= kPendingOffset) return nullptr;
  if (offset >= kTableOffset) {
    msix_.write_table(offset - kTableOffset, data);
  } else if (offset >= kNotifyOffset) {
    const uint64_t queue = (offset - kNotifyOffset) / kNotifyMultiplier;
    if (queue < doorbells_.size()) doorbells_[queue].ring();
  } else if (offset >= kDeviceOffset) {
    return common_.write_device_config(offset - kDeviceOffset, data);
  } else if (offset < kIsrOffset) {
    common_.write(offset, data);
  }
  return nullptr;
}

// Where the window points now, with the data register's bytes; nullopt if it points nowhere. The driver
// chooses a width of 1, 2 or 4 and an aligned offset (4.1.4.9.1).
std::optional<PciTransport::WindowAccess> PciTransport::window() const {
  const unsigned cap = window_capability_;
  WindowAccess result{.offset = get32(cap + kCapOffset), .width = get32(cap + kCapRegionLength)};
  if (get16(cap + kCapBar) % 256 != kBar) return std::nullopt;
  if (result.width != 1 && result.width != 2 && result.width != 4) return std::nullopt;
  if (result.offset % result.width != 0 || result.offset >= kBarBytes) return std::nullopt;
  const uint32_t data = get32(cap + kCapExtra);
  std::memcpy(result.bytes.data(), &data, sizeof data);
  return result;
}

void PciTransport::before_config_read(unsigned offset, unsigned width) {
  if (touches(offset, width, pci::kStatus, 2)) {
    const uint16_t others = get16(pci::kStatus) & ~pci::kStatusInterrupt;
    set16(pci::kStatus, others | (pin_.pending() ? pci::kStatusInterrupt : 0));
  }
  if (touches(offset, width, window_capability_ + kCapExtra, 4)) {
    const auto target = window();
    if (!target) return;
    std::array<uint8_t, 4> bytes{};
    read_bar(target->offset, std::span(bytes).first(target->width));
    uint32_t data;
    std::memcpy(&data, bytes.data(), sizeof data);
    set32(window_capability_ + kCapExtra, data);
  }
}

void PciTransport::after_config_write(unsigned offset, unsigned width) {
  if (touches(offset, width, pci::kCommand, 2))
    pin_.set_interrupt_disable(get16(pci::kCommand) & pci::kCommandInterruptDisable);
  if (touches(offset, width, msix_capability_ + kMsixControl, 2)) {
    const uint16_t control = get16(msix_capability_ + kMsixControl);
    msix_.set_control(control);
    pin_.set_msix_enabled(control & pci::kMsixEnable);
  }
  if (touches(offset, width, window_capability_ + kCapExtra, 4)) window_write_ = window();
}

// A vCPU that wrote through the window is not parked: firmware has no use for toggling a cache, and what the
// field reads back is true at any time.
void PciTransport::config_changed() {
  {
    std::lock_guard in_order(window_mutex_);
    std::optional<WindowAccess> write;
    {
      std::lock_guard lock(config_mutex_);
      write = std::exchange(window_write_, std::nullopt);
    }
    if (write) write_bar(write->offset, std::span(write->bytes).first(write->width));
  }
  bind_doorbells();
}

void PciTransport::bind_doorbells() {
  std::lock_guard lock(binding_mutex_);
  uint64_t address = 0;
  for (const pci::BarMapping& mapping : mappings()) {
    if (mapping.index == kBar) address = mapping.address + kNotifyOffset;
  }
  if (address == bound_at_) return;
  for (unsigned i = 0; i < doorbells_.size(); ++i) {
    const uint64_t step = kNotifyMultiplier * i;
    const int fd = doorbells_[i].fd();
    if (bound_[i]) wiring_.doorbells.unbind(bound_at_ + step, kNotifyWidth, fd);
    bound_[i] = address != 0 && wiring_.doorbells.bind(address + step, kNotifyWidth, fd);
  }
  bound_at_ = address;
}

void PciTransport::interrupt_queue(unsigned queue) {
  if (msix_.enabled()) {
    msix_.signal(common_.queue_vector(queue));  // NO_VECTOR is beyond the table: nothing is sent
  } else {
    pin_.raise(kIsrQueue);
  }
}

void PciTransport::config_interrupt() {
  pin_.raise(kIsrConfig);  // with MSI-X too (4.1.4.5.1)
  if (msix_.enabled()) msix_.signal(common_.config_vector());
}

void PciTransport::after_reset() {
  pin_.read_and_clear();
}

void PciTransport::became_unusable(std::string_view reason) {
  if (!wiring_.complain || complaints_ == kComplaints) return;
  ++complaints_;
  wiring_.complain(reason);
}

void PciTransport::reset() {
  PciFunction::reset();
  msix_.reset();
  pin_.set_msix_enabled(false);
  pin_.set_interrupt_disable(false);
  common_.reset();
}

}  // namespace spindle::virtio
