#include "vmm/disk_devices.h"

#include <fmt/format.h>

#include <array>

#include "vmm/layout.h"

namespace spindle::vmm {
namespace {

constexpr PciSlot kIdeSlot{.device = 1, .function = 1};
constexpr uint8_t kClassStorage = 0x01, kSubclassScsi = 0x00;  // what virtio-blk says it is

}  // namespace

Result<> DiskDevices::add(const DiskEntry& entry, const DeviceWiring& wiring) {
  const bool is_ide = entry.spec.interface == DiskInterface::Ide;
  return is_ide ? add_ide(entry, wiring) : add_virtio(entry, wiring);
}

Result<> DiskDevices::add_virtio(const DiskEntry& entry, const DeviceWiring& wiring) {
  if (!doorbells_) doorbells_.emplace(*wiring.vm);
  const PciSlot slot{.device = kFirstVirtioDevice + entry.place.unit};
  Virtio made{.disk = entry.disk};
  auto device = virtio::VirtioBlk::create(
      *entry.disk, wiring.memory,
      {.serial = entry.spec.serial, .queues = entry.spec.queues, .packed = entry.spec.packed});
  if (!device) return std::unexpected(device.error());
  made.device = std::move(*device);
  made.messages = std::make_unique<VmMessages>(*wiring.vm, next_gsi_, wiring.fault);
  auto transport = virtio::PciTransport::create(
      *made.device, reactor_,
      {.messages = *made.messages,
       .line = wiring.bus.interrupt(slot, 1),
       .doorbells = *doorbells_,
       .complain =
           [id = entry.place.id](std::string_view reason) {
             fmt::print(stderr, "spindle: disk {}: the guest's driver must reset it: {}\n", id, reason);
           }},
      kClassStorage, kSubclassScsi);
  if (!transport) return std::unexpected(transport.error());
  made.transport = std::move(*transport);
  // The transport is at work on the reactor already: whatever happens now, it must be there for stop().
  virtio_disks_.push_back(std::move(made));
  return wiring.bus.add(slot, *virtio_disks_.back().transport);
}

// The first IDE disk brings the controller.
Result<> DiskDevices::add_ide(const DiskEntry& entry, const DeviceWiring& wiring) {
  if (!ide_controller_) {
    ide_controller_ = std::make_unique<ide::PiixIde>(
        wiring.memory, reactor_,
        std::array{&wiring.chipset.pin(kIrqIde[0]).add_input(), &wiring.chipset.pin(kIrqIde[1]).add_input()});
    for (unsigned channel = 0; channel < ide::kChannels; ++channel) {
      wiring.ports.add(kPortIdeCommand[channel], 8, ide_controller_->command_block(channel));
      wiring.ports.add(kPortIdeControl[channel], 1, ide_controller_->control_block(channel));
    }
    SPINDLE_TRY(wiring.bus.add(kIdeSlot, *ide_controller_));
  }
  if (entry.spec.cdrom) {
    return ide_controller_->attach_cdrom(entry.place.bus, entry.place.unit, entry.disk, entry.place.id,
                                         {.serial = entry.spec.serial});
  }
  return ide_controller_->attach(entry.place.bus, entry.place.unit, entry.disk,
                                 {.serial = entry.spec.serial});
}

Task<void> DiskDevices::settle() {
  if (ide_controller_) co_await ide_controller_->drain();
  for (Virtio& disk : virtio_disks_) co_await disk.transport->settle();
}

Task<void> DiskDevices::quiesce(std::span<const std::shared_ptr<Disk>> disks) {
  for (Virtio& disk : virtio_disks_) disk.device->suspend();
  do {
    co_await reactor_.yield();
    for (const auto& disk : disks) co_await disk->drain();
  } while (!at_rest(disks));
}

void DiskDevices::resume() {
  for (Virtio& disk : virtio_disks_) disk.device->resume();
}

// A request that waits in a disk is one of a device's, so equal sums are equal all over.
bool DiskDevices::at_rest(std::span<const std::shared_ptr<Disk>> disks) {
  uint64_t held = 0, taken = ide_controller_ ? ide_controller_->jobs() : 0;
  for (const auto& disk : disks) held += disk->held();
  for (const Virtio& disk : virtio_disks_) taken += disk.device->in_flight();
  return taken == held;
}

void DiskDevices::config_changed(const Disk& disk) {
  for (Virtio& candidate : virtio_disks_) {
    if (candidate.disk.get() == &disk) candidate.device->config_changed();
  }
}

Task<void> DiskDevices::stop() {
  if (ide_controller_) co_await ide_controller_->drain();
  for (Virtio& disk : virtio_disks_) co_await disk.transport->stop();
}

}  // namespace spindle::vmm
