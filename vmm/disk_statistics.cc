#include "vmm/disk_statistics.h"

#include <initializer_list>
#include <nlohmann/json.hpp>

#include "block/filters/throttle_node.h"

namespace spindle::vmm {
namespace {

nlohmann::ordered_json counters_json(const DiskEntry& entry) {
  const DiskCounters none;
  nlohmann::ordered_json json;
  entry.earlier.each_with(
      entry.disk ? entry.disk->counters() : none,
      [&json](std::string_view name, uint64_t value) { json[std::string(name)] = value; });
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
bool flushes_balance(const nlohmann::ordered_json& counters) {
  const auto sum = [&counters](std::initializer_list<const char*> names) {
    uint64_t total = 0;
    for (const char* name : names) total += counters.at(name).get<uint64_t>();
    return total;
  };
  return sum({"flush_requests", "flushes_writethrough", "flushes_toggle", "flushes_background"}) ==
         sum({"flushes_issued", "flushes_elided", "flushes_coalesced", "flushes_failed"});
}

}  // namespace

DiskSnapshot snapshot_of(const DiskEntry& entry, DiskDevices* devices) {
  DiskSnapshot snapshot{.protocol = entry.earlier.protocol()};
  if (entry.disk) {
    snapshot.protocol += protocol_counters_below(entry.disk->node());
    snapshot.io_status = entry.disk->io_status();
    snapshot.limits = find_throttle(entry.disk->node())->limits();
  }
  if (devices && entry.spec.cdrom) snapshot.tray = devices->channel(entry).tray(entry.place.unit);
  return snapshot;
}

nlohmann::ordered_json disk_json(const DiskEntry& entry, const DiskSnapshot& snapshot) {
  nlohmann::ordered_json json;
  json["id"] = entry.place.id;
  if (entry.disk) {
    json["file"] = entry.spec.file;
    json["format"] = entry.spec.format;
  }
  json["bus"] = entry.spec.interface == DiskInterface::Ide ? "ide" : "virtio";
  if (entry.spec.cdrom) json["tray"] = {{"open", snapshot.tray.open}, {"locked", snapshot.tray.locked}};
  if (entry.disk) {
    json["size"] = entry.disk->size();
    json["read_only"] = entry.disk->read_only();
  }
  json["cache"] = to_string(entry.spec.cache);
  if (entry.disk) {
    json["write_cache"] = entry.disk->write_cache();
    json["throttling"] = throttling_json(snapshot.limits);
  }
  json["io_status"] = to_string(snapshot.io_status);
  json["counters"] = counters_json(entry);
  json["flushes_balance"] = flushes_balance(json["counters"]);
  const ProtocolCounters& protocol = snapshot.protocol;
  json["protocol"] = {{"reads", protocol.reads},
                      {"writes", protocol.writes},
                      {"fdatasyncs", protocol.fdatasyncs},
                      {"fallocates", protocol.fallocates}};
  return json;
}

}  // namespace spindle::vmm
