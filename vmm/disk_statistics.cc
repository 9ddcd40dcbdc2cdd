#include "vmm/disk_statistics.h"

#include <nlohmann/json.hpp>

#include "block/filters/throttle_node.h"

namespace spindle::vmm {
namespace {

nlohmann::ordered_json counters_json(const DiskCounters& counters) {
  nlohmann::ordered_json json;
  counters.each([&json](std::string_view name, uint64_t value) { json[std::string(name)] = value; });
  return json;
}

std::string_view to_string(IoStatus status) {
  switch (status) {
    case IoStatus::Ok:
      return "ok";
    case IoStatus::Failed:
      return "failed";
    case IoStatus::NoSpace:
      return "nospace";
  }
  return "";
}

// As QMP's query-block shows them: the six averages always, the rest where it says something.
nlohmann::ordered_json throttling_json(ThrottleLimits limits) {
  nlohmann::ordered_json json;
  for (const ThrottleField& field : throttle_fields(limits, ThrottleSpelling::Qmp)) {
    if (field.required || *field.value != field.unset) json[field.name] = *field.value;
  }
  return json;
}

/// The rule of DESIGN 4: every reason to flush has exactly one outcome. True of a disk with nothing in
/// flight.
bool flushes_balance(const DiskCounters& c) {
  return c.flush_requests.value() + c.flushes_writethrough.value() + c.flushes_toggle.value() +
             c.flushes_background.value() ==
         c.flushes_issued.value() + c.flushes_elided.value() + c.flushes_coalesced.value() +
             c.flushes_failed.value();
}

}  // namespace

DiskSnapshot snapshot_of(const Disk& disk) {
  return {.protocol = protocol_counters_below(disk.node()),
          .io_status = disk.io_status(),
          .limits = find_throttle(disk.node())->limits()};
}

nlohmann::ordered_json disk_json(const DiskEntry& entry, const DiskSnapshot& snapshot) {
  const ProtocolCounters& protocol = snapshot.protocol;
  return {
      {"id", entry.place.id},
      {"file", entry.spec.file},
      {"format", entry.spec.format},
      {"bus", entry.spec.interface == DiskInterface::Ide ? "ide" : "virtio"},
      {"size", entry.disk->size()},
      {"read_only", entry.disk->read_only()},
      {"cache", to_string(entry.spec.cache)},
      {"write_cache", entry.disk->write_cache()},
      {"io_status", to_string(snapshot.io_status)},
      {"throttling", throttling_json(snapshot.limits)},
      {"counters", counters_json(entry.disk->counters())},
      {"flushes_balance", flushes_balance(entry.disk->counters())},
      {"protocol",
       {{"reads", protocol.reads},
        {"writes", protocol.writes},
        {"fdatasyncs", protocol.fdatasyncs},
        {"fallocates", protocol.fallocates}}},
  };
}

}  // namespace spindle::vmm
