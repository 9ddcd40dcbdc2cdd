// Which disk goes where, and what it is called.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "block/disk_spec.h"
#include "block/result.h"

namespace spindle::vmm {

inline constexpr unsigned kFirstVirtioDevice = 2;  // of the PCI bus: 0 is the host bridge, 1 the PIIX4

/// Where a disk goes, and what it is called.
struct DiskPlace {
  std::string id;     ///< the user's, else as QEMU names it: virtio0, ide0-hd1, ide1-cd0
  unsigned bus = 0;   ///< ide: channel
  unsigned unit = 0;  ///< ide: drive; virtio: how many came before
};

/// Gives every disk its place: first those that name one, then the others in their order. Invalid, for the
/// user: a place taken twice, more than four IDE drives or 30 virtio disks, an id used twice.
Result<std::vector<DiskPlace>> place_disks(std::span<const DiskSpec> specs);

}  // namespace spindle::vmm
