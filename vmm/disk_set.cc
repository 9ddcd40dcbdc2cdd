#include "vmm/disk_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "block/filters/throttle_node.h"
#include "block/graph.h"
#include "vmm/disk_statistics.h"
#include "vmm/open_files.h"
#include "vmm/sandbox.h"

namespace spindle::vmm {
namespace {

constexpr unsigned kFilesPerQueue = 2;  // doorbell and interrupt

}  // namespace

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
  for (DiskEntry& entry : entries_) {
    entry.disk->set_stop_handler([handler, id = entry.place.id](const Error& error) {
      handler(fmt::format("disk {}: {}", id, error.message()));
    });
  }
}

Result<> DiskSet::plug(const DeviceWiring& wiring) {
  unsigned queues = 0;
  for (const DiskEntry& entry : entries_) queues += entry.spec.queues;
  SPINDLE_TRY(make_room_for_open_files(kFilesPerQueue * queues));
  devices_ = std::make_unique<DiskDevices>(wiring.vm);
  for (const DiskEntry& entry : entries_) SPINDLE_TRY(devices_->add(entry, wiring));
  return {};
}

std::vector<DrainSection> DiskSet::drain_sections() {
  std::vector<DrainSection> sections;
  sections.reserve(entries_.size());
  for (DiskEntry& entry : entries_) sections.emplace_back(entry.disk->node());
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
    for (DiskEntry& entry : entries_) entry.disk->fail_held();
    if (devices_) co_await devices_->settle();
    for (DiskEntry& entry : entries_) {
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
    for (DiskEntry& entry : entries_) co_await entry.disk->drain();
  });
}

void DiskSet::retry_held() {
  reactor_->call([&]() -> Task<void> {
    for (DiskEntry& entry : entries_) entry.disk->retry_held();
    co_return;
  });
}

void DiskSet::resume() {
  reactor_->call([&]() -> Task<void> {
    if (devices_) devices_->resume();
    co_return;
  });
}

Result<DiskEntry*> DiskSet::find(const std::string& id, const char* operation) {
  const auto entry = std::ranges::find(entries_, id, [](const DiskEntry& e) { return e.place.id; });
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
    auto set = co_await (*entry)->disk->set_write_cache(on, CacheChooser::Host);
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
    for (DiskEntry& entry : entries_) entry.disk->fail_held();
    if (devices_) co_await devices_->stop();
    for (DiskEntry& entry : entries_) {
      auto closed = co_await entry.disk->close();
      if (!closed) errors.push_back(std::move(*closed.error()));
    }
  });
  return errors;
}

nlohmann::ordered_json DiskSet::statistics() {
  std::vector<DiskSnapshot> snapshots;
  reactor_->call([&]() -> Task<void> {
    for (const DiskEntry& entry : entries_) snapshots.push_back(snapshot_of(*entry.disk));
    co_return;
  });
  auto list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < entries_.size(); ++i) list.push_back(disk_json(entries_[i], snapshots[i]));
  return list;
}

}  // namespace spindle::vmm
