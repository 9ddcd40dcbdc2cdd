// What query-block, query-blockstats and --stats-json have of a disk, as one JSON object.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "block/filters/throttle_limits.h"
#include "block/graph.h"
#include "vmm/disk_devices.h"

namespace spindle::vmm {

/// What only the reactor and the device can tell.
struct DiskSnapshot {
  ProtocolCounters protocol;
  IoStatus io_status = IoStatus::Ok;
  ThrottleLimits limits;
  ide::Channel::Tray tray;
};

/// On the reactor. Without `devices` no guest has moved a tray yet.
DiskSnapshot snapshot_of(const DiskEntry& entry, DiskDevices* devices);
/// Any thread.
nlohmann::ordered_json disk_json(const DiskEntry& entry, const DiskSnapshot& snapshot);

}  // namespace spindle::vmm
