// DiskDevices: the devices over a machine's disks, on their buses.
//
// They end before the disks do.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "block/disk.h"
#include "devices/guest_memory.h"
#include "devices/ide/piix_ide.h"
#include "devices/virtio/blk.h"
#include "devices/virtio/pci_transport.h"
#include "vmm/chipset.h"
#include "vmm/disk_places.h"
#include "vmm/earlier_media.h"
#include "vmm/pci_bus.h"

namespace spindle::vmm {

/// What devices need of the machine.
struct DeviceWiring {
  const GuestMemory& memory;
  Vm* vm = nullptr;  ///< for virtio disks
  PciBus& bus;
  Chipset& chipset;
  IoSpace& ports;
  FaultHandler fault;
};

/// A disk of the machine's, or a CD-ROM drive.
struct DiskEntry {
  DiskSpec spec;
  DiskPlace place;
  std::shared_ptr<Disk> disk;  ///< null: a CD-ROM drive without a medium
  EarlierMedia earlier = {};
};

class DiskDevices {
 public:
  explicit DiskDevices(Reactor& reactor) : reactor_(reactor) {}

  Result<> add(const DiskEntry& entry, const DeviceWiring& wiring);
  /// Where the drive of an IDE entry is.
  ide::Channel& channel(const DiskEntry& entry) { return ide_controller_->channel(entry.place.bus); }

  // ---- the reactor ----

  /// After the functions were reset: returns when no request of before touches guest memory.
  Task<void> settle();
  /// Takes no further request from the queues, until resume(), and waits for those under way. `disks` are all
  /// that the devices read from and write to.
  Task<void> quiesce(std::span<const std::shared_ptr<Disk>> disks);
  void resume();
  /// Tells the guest where its bus has a way to.
  void config_changed(const Disk& disk);
  /// For good.
  Task<void> stop();

 private:
  struct Virtio {
    std::shared_ptr<Disk> disk;
    std::unique_ptr<VmMessages> messages;
    std::unique_ptr<virtio::VirtioBlk> device;
    std::unique_ptr<virtio::PciTransport> transport;
  };

  Result<> add_virtio(const DiskEntry& entry, const DeviceWiring& wiring);
  Result<> add_ide(const DiskEntry& entry, const DeviceWiring& wiring);
  /// Nothing but what waits after an error.
  bool at_rest(std::span<const std::shared_ptr<Disk>> disks);

  Reactor& reactor_;
  std::optional<VmDoorbells> doorbells_;
  std::atomic<unsigned> next_gsi_{kGsiMessageFirst};
  std::unique_ptr<ide::PiixIde> ide_controller_;
  std::vector<Virtio> virtio_disks_;
};

}  // namespace spindle::vmm
