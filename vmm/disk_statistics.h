// What query-block, query-blockstats and --stats-json have of a disk, as one JSON object.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "block/filters/throttle_limits.h"
#include "block/graph.h"
#include "vmm/disk_devices.h"

namespace spindle::vmm {

/// What only the reactor can tell.
struct DiskSnapshot {
  ProtocolCounters protocol;
  IoStatus io_status = IoStatus::Ok;
  ThrottleLimits limits;
};

/// On the reactor.
DiskSnapshot snapshot_of(const Disk& disk);
/// Any thread.
nlohmann::ordered_json disk_json(const DiskEntry& entry, const DiskSnapshot& snapshot);

}  // namespace spindle::vmm
