#include "vmm/disk_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>

#include "block/filters/throttle_node.h"
#include "block/graph.h"
#include "devices/ide/piix_ide.h"
#include "devices/virtio/blk.h"
#include "devices/virtio/pci_transport.h"
#include "vmm/open_files.h"
#include "vmm/sandbox.h"

namespace spindle::vmm {
namespace {

constexpr unsigned kIdeBuses = ide::kChannels, kIdeUnits = 2;
constexpr PciSlot kIdeSlot{.device = 1, .function = 1};
constexpr unsigned kFirstVirtioDevice = 2;  // 0 is the host bridge, 1 the PIIX4
constexpr unsigned kMaxVirtioDisks = 32 - kFirstVirtioDevice;
constexpr unsigned kFilesPerQueue = 2;                         // doorbell and interrupt
constexpr uint8_t kClassStorage = 0x01, kSubclassScsi = 0x00;  // what virtio-blk says it is

std::unexpected<Error> bad_disk(const DiskSpec& spec, std::string detail) {
  return std::unexpected(
      Error{.kind = ErrorKind::Invalid, .operation = "disk " + spec.file, .detail = std::move(detail)});
}

// Which of the four IDE places are taken.
class IdePlaces {
 public:
  Result<> take(const DiskSpec& spec, unsigned bus, unsigned unit) {
    bool& taken = taken_[bus][unit];
    if (taken) {
      return bad_disk(
          spec,
          fmt::format("IDE bus {} unit {} has a disk already; choose another bus= or unit=", bus, unit));
    }
    taken = true;
    return {};
  }
  /// The first free place that agrees with what the description leaves open.
  Result<DiskPlace> take_free(const DiskSpec& spec) {
    for (unsigned bus = 0; bus < kIdeBuses; ++bus) {
      for (unsigned unit = 0; unit < kIdeUnits; ++unit) {
        if (taken_[bus][unit] || spec.bus.value_or(bus) != bus || spec.unit.value_or(unit) != unit) continue;
        taken_[bus][unit] = true;
        return DiskPlace{.bus = bus, .unit = unit};
      }
    }
    return bad_disk(spec, "no IDE place is left for it: there are two buses with two units; use if=virtio");
  }

 private:
  bool taken_[kIdeBuses][kIdeUnits] = {};
};

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

Result<std::vector<DiskPlace>> place_disks(std::span<const DiskSpec> specs) {
  std::vector<DiskPlace> places(specs.size());
  IdePlaces ide;
  for (size_t i = 0; i < specs.size(); ++i) {
    const DiskSpec& spec = specs[i];
    if (spec.interface != DiskInterface::Ide || !spec.bus || !spec.unit) continue;
    SPINDLE_TRY(ide.take(spec, *spec.bus, *spec.unit));
    places[i] = {.bus = *spec.bus, .unit = *spec.unit};
  }
  unsigned virtio = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const DiskSpec& spec = specs[i];
    if (spec.interface == DiskInterface::Ide) {
      if (spec.bus && spec.unit) continue;
      auto place = ide.take_free(spec);
      if (!place) return std::unexpected(place.error());
      places[i] = *place;
    } else {
      if (virtio == kMaxVirtioDisks) {
        return bad_disk(spec, fmt::format("the PCI bus holds {} virtio disks and no more", kMaxVirtioDisks));
      }
      places[i] = {.unit = virtio++};
    }
  }
  std::set<std::string> ids;
  for (size_t i = 0; i < specs.size(); ++i) {
    const bool is_ide = specs[i].interface == DiskInterface::Ide;
    places[i].id =
        !specs[i].id.empty() ? specs[i].id
        : is_ide ? fmt::format("ide{}-{}{}", places[i].bus, specs[i].cdrom ? "cd" : "hd", places[i].unit)
                 : fmt::format("virtio{}", places[i].unit);
    if (!ids.insert(places[i].id).second) {
      return bad_disk(specs[i],
                      fmt::format("another disk has the id {} already; choose another id=", places[i].id));
    }
  }
  return places;
}

// The devices over the disks; separate, so that they go before the disks do.
class DiskSet::Devices {
 public:
  struct Virtio {
    std::shared_ptr<Disk> disk;
    std::unique_ptr<VmMessages> messages;
    std::unique_ptr<virtio::VirtioBlk> device;
    std::unique_ptr<virtio::PciTransport> transport;
  };

  explicit Devices(Vm& vm) : doorbells(vm) {}

  Result<> add_virtio(const Entry& entry, const DeviceWiring& wiring) {
    const PciSlot slot{.device = kFirstVirtioDevice + entry.place.unit};
    Virtio made{.disk = entry.disk};
    auto device = virtio::VirtioBlk::create(*entry.disk, wiring.memory,
                                            {.serial = entry.spec.serial,
                                             .queues = entry.spec.queues,
                                             .packed = entry.spec.packed});
    if (!device) return std::unexpected(device.error());
    made.device = std::move(*device);
    made.messages = std::make_unique<VmMessages>(wiring.vm, next_gsi, wiring.fault);
    auto transport = virtio::PciTransport::create(
        *made.device, entry.disk->reactor(),
        {.messages = *made.messages,
         .line = wiring.bus.interrupt(slot, 1),
         .doorbells = doorbells,
         .complain =
             [id = entry.place.id](std::string_view reason) {
               fmt::print(stderr, "spindle: disk {}: the guest's driver must reset it: {}\n", id, reason);
             }},
        kClassStorage, kSubclassScsi);
    if (!transport) return std::unexpected(transport.error());
    made.transport = std::move(*transport);
    // The transport is at work on the reactor already: whatever happens now, it must be there for stop().
    virtio_disks.push_back(std::move(made));
    return wiring.bus.add(slot, *virtio_disks.back().transport);
  }

  /// The first IDE disk brings the controller.
  Result<> add_ide(const Entry& entry, const DeviceWiring& wiring) {
    if (!ide_controller) {
      ide_controller =
          std::make_unique<ide::PiixIde>(wiring.memory, entry.disk->reactor(),
                                         std::array{&wiring.chipset.pin(kIrqIde[0]).add_input(),
                                                    &wiring.chipset.pin(kIrqIde[1]).add_input()});
      for (unsigned channel = 0; channel < ide::kChannels; ++channel) {
        wiring.ports.add(kPortIdeCommand[channel], 8, ide_controller->command_block(channel));
        wiring.ports.add(kPortIdeControl[channel], 1, ide_controller->control_block(channel));
      }
      SPINDLE_TRY(wiring.bus.add(kIdeSlot, *ide_controller));
    }
    ide_disks.push_back(entry.disk);
    if (entry.spec.cdrom) {
      return ide_controller->attach_cdrom(entry.place.bus, entry.place.unit, entry.disk, entry.place.id,
                                          {.serial = entry.spec.serial});
    }
    return ide_controller->attach(entry.place.bus, entry.place.unit, entry.disk,
                                  {.serial = entry.spec.serial});
  }

  Task<void> settle() {
    if (ide_controller) co_await ide_controller->drain();
    for (Virtio& disk : virtio_disks) co_await disk.transport->settle();
  }
  /// Takes no further request from the queues, until resume(), and waits for those under way.
  Task<void> quiesce(Reactor& reactor) {
    for (Virtio& disk : virtio_disks) disk.device->suspend();
    do {
      co_await reactor.yield();
      for (Virtio& disk : virtio_disks) co_await disk.disk->drain();
      for (const auto& disk : ide_disks) co_await disk->drain();
    } while (!at_rest());
  }
  void resume() {
    for (Virtio& disk : virtio_disks) disk.device->resume();
  }
  /// Nothing but what waits after an error.
  bool at_rest() const {
    uint64_t held = 0;
    for (const auto& disk : ide_disks) held += disk->held();
    if (ide_controller && ide_controller->jobs() != held) return false;
    return std::ranges::all_of(
        virtio_disks, [](const Virtio& disk) { return disk.device->in_flight() == disk.disk->held(); });
  }
  /// Tells the guest where its bus has a way to.
  void config_changed(const Disk& disk) {
    for (Virtio& candidate : virtio_disks) {
      if (candidate.disk.get() == &disk) candidate.device->config_changed();
    }
  }
  Task<void> stop() {
    if (ide_controller) co_await ide_controller->drain();
    for (Virtio& disk : virtio_disks) co_await disk.transport->stop();
  }

  VmDoorbells doorbells;
  std::atomic<unsigned> next_gsi{kGsiMessageFirst};
  std::unique_ptr<ide::PiixIde> ide_controller;
  std::vector<std::shared_ptr<Disk>> ide_disks;
  std::vector<Virtio> virtio_disks;
};

DiskSet::DiskSet() = default;
DiskSet::~DiskSet() = default;

Task<Result<std::shared_ptr<Disk>>> DiskSet::open_one(DiskSpec spec, std::string id,
                                                      const FormatRegistry& registry,
                                                      std::vector<std::string>& warnings) {
  auto node = co_await open_graph(reactor_->reactor(), spec, registry, warnings);
  if (!node) co_return std::unexpected(std::move(node.error()));
  DiskOptions options = disk_options(spec);
  options.id = std::move(id);
  co_return std::make_shared<Disk>(std::move(*node), std::move(options));
}

Result<std::unique_ptr<DiskSet>> DiskSet::open(std::span<const DiskSpec> specs,
                                               const FormatRegistry& registry,
                                               std::vector<std::string>& warnings) {
  auto places = place_disks(specs);
  if (!places) return std::unexpected(places.error());
  std::unique_ptr<DiskSet> set(new DiskSet);
  auto reactor = ReactorThread::start("disks");
  if (!reactor) return std::unexpected(reactor.error());
  set->reactor_ = std::move(*reactor);
  for (size_t i = 0; i < specs.size(); ++i) {
    auto disk =
        set->reactor_->call([&] { return set->open_one(specs[i], (*places)[i].id, registry, warnings); });
    if (!disk) {
      (void)set->close();  // nothing was written to those that are open
      return std::unexpected(disk.error());
    }
    set->entries_.push_back({specs[i], (*places)[i], std::move(*disk)});
  }
  return set;
}

void DiskSet::set_stop_handler(std::function<void(std::string)> handler) {
  for (Entry& entry : entries_) {
    entry.disk->set_stop_handler([handler, id = entry.place.id](const Error& error) {
      handler(fmt::format("disk {}: {}", id, error.message()));
    });
  }
}

Result<> DiskSet::plug(const DeviceWiring& wiring) {
  unsigned queues = 0;
  for (const Entry& entry : entries_) queues += entry.spec.queues;
  SPINDLE_TRY(make_room_for_open_files(kFilesPerQueue * queues));
  devices_ = std::make_unique<Devices>(wiring.vm);
  for (const Entry& entry : entries_) {
    const bool is_ide = entry.spec.interface == DiskInterface::Ide;
    SPINDLE_TRY(is_ide ? devices_->add_ide(entry, wiring) : devices_->add_virtio(entry, wiring));
  }
  return {};
}

std::vector<DrainSection> DiskSet::drain_sections() {
  std::vector<DrainSection> sections;
  sections.reserve(entries_.size());
  for (Entry& entry : entries_) sections.emplace_back(entry.disk->node());
  return sections;
}

void DiskSet::confine() {
  reactor_->call([]() -> Task<void> {
    confine_or_end(ThreadRole::Disks);
    co_return;
  });
}

std::vector<Error> DiskSet::settle() {
  std::vector<Error> errors;
  reactor_->call([&]() -> Task<void> {
    const auto drained = drain_sections();
    for (Entry& entry : entries_) entry.disk->fail_held();
    if (devices_) co_await devices_->settle();
    for (Entry& entry : entries_) {
      co_await entry.disk->drain();
      entry.disk->hold_errors();
      auto reverted = co_await entry.disk->revert_write_cache();
      if (!reverted) errors.push_back(std::move(*reverted.error()));
    }
  });
  return errors;
}

void DiskSet::quiesce() {
  reactor_->call([&]() -> Task<void> {
    const auto drained = drain_sections();
    if (devices_) co_await devices_->quiesce(reactor_->reactor());
    for (Entry& entry : entries_) co_await entry.disk->drain();
  });
}

void DiskSet::retry_held() {
  reactor_->call([&]() -> Task<void> {
    for (Entry& entry : entries_) entry.disk->retry_held();
    co_return;
  });
}

void DiskSet::resume() {
  reactor_->call([&]() -> Task<void> {
    if (devices_) devices_->resume();
    co_return;
  });
}

Result<DiskSet::Entry*> DiskSet::find(const std::string& id, const char* operation) {
  const auto entry = std::ranges::find(entries_, id, [](const Entry& e) { return e.place.id; });
  if (entry != entries_.end()) return &*entry;
  return std::unexpected(Error{.kind = ErrorKind::NotFound,
                               .operation = operation,
                               .node = id,
                               .detail = "there is no such disk; query-block lists them"});
}

Result<> DiskSet::set_write_cache(const std::string& id, bool on) {
  auto entry = find(id, "write cache");
  if (!entry) return std::unexpected(std::move(entry.error()));
  return reactor_->call([&]() -> Task<Result<>> {
    auto set = co_await (*entry)->disk->set_write_cache(on);
    // The guest reads the field back; who asks from outside has nothing but this answer.
    if (set && on && (*entry)->disk->node().sequencer().failure()) {
      set = std::unexpected(Error{.kind = ErrorKind::FlushFailed,
                                  .number = EIO,
                                  .operation = "write cache",
                                  .node = id,
                                  .detail = "an earlier flush failed: the disk stays write-through"});
    }
    if (devices_) devices_->config_changed(*(*entry)->disk);
    co_return set;
  });
}

Result<> DiskSet::set_throttle(const std::string& id, const ThrottleLimits& limits) {
  auto entry = find(id, "throttle");
  if (!entry) return std::unexpected(std::move(entry.error()));
  reactor_->call([&]() -> Task<void> {
    find_throttle((*entry)->disk->node())->set_limits(limits);  // open_graph() puts one into every graph
    co_return;
  });
  return {};
}

Result<> DiskSet::resize(const std::string& id, uint64_t bytes) {
  auto entry = find(id, "resize");
  if (!entry) return std::unexpected(std::move(entry.error()));
  return reactor_->call([&]() -> Task<Result<>> {
    const uint64_t before = (*entry)->disk->size();
    auto resized = co_await (*entry)->disk->resize(bytes);
    if ((*entry)->disk->size() != before) devices_->config_changed(*(*entry)->disk);
    co_return resized;
  });
}

std::vector<Error> DiskSet::close() {
  std::vector<Error> errors;
  reactor_->call([&]() -> Task<void> {
    const auto drained = drain_sections();
    for (Entry& entry : entries_) entry.disk->fail_held();
    if (devices_) co_await devices_->stop();
    for (Entry& entry : entries_) {
      auto closed = co_await entry.disk->close();
      if (!closed) errors.push_back(std::move(*closed.error()));
    }
  });
  return errors;
}

nlohmann::ordered_json DiskSet::statistics() {
  std::vector<ProtocolCounters> protocols;
  std::vector<IoStatus> io_status;
  std::vector<ThrottleLimits> limits;
  reactor_->call([&]() -> Task<void> {
    for (const Entry& entry : entries_) {
      protocols.push_back(protocol_counters_below(entry.disk->node()));
      io_status.push_back(entry.disk->io_status());
      limits.push_back(find_throttle(entry.disk->node())->limits());
    }
    co_return;
  });
  auto list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    const ProtocolCounters& protocol = protocols[i];
    list.push_back({
        {"id", entry.place.id},
        {"file", entry.spec.file},
        {"format", entry.spec.format},
        {"bus", entry.spec.interface == DiskInterface::Ide ? "ide" : "virtio"},
        {"size", entry.disk->size()},
        {"read_only", entry.disk->read_only()},
        {"cache", to_string(entry.spec.cache)},
        {"write_cache", entry.disk->write_cache()},
        {"io_status", to_string(io_status[i])},
        {"throttling", throttling_json(limits[i])},
        {"counters", counters_json(entry.disk->counters())},
        {"flushes_balance", flushes_balance(entry.disk->counters())},
        {"protocol",
         {{"reads", protocol.reads},
          {"writes", protocol.writes},
          {"fdatasyncs", protocol.fdatasyncs},
          {"fallocates", protocol.fallocates}}},
    });
  }
  return list;
}

}  // namespace spindle::vmm
