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

DiskSet::DiskSet(const FormatRegistry& registry) : registry_(registry) {}
DiskSet::~DiskSet() = default;

Task<Result<std::shared_ptr<Disk>>> DiskSet::open_one(DiskSpec spec, std::string id,
                                                      std::vector<std::string>& warnings) {
  auto node = co_await open_graph(reactor_->reactor(), spec, registry_, warnings);
  if (!node) co_return std::unexpected(std::move(node.error()));
  DiskOptions options = disk_options(spec);
  options.id = std::move(id);
  auto disk = std::make_shared<Disk>(std::move(*node), std::move(options));
  stop_for_errors_of(*disk);
  co_return disk;
}

Result<std::unique_ptr<DiskSet>> DiskSet::open(std::span<const DiskSpec> specs,
                                               const FormatRegistry& registry,
                                               std::vector<std::string>& warnings) {
  auto places = place_disks(specs);
  if (!places) return std::unexpected(places.error());
  std::unique_ptr<DiskSet> set(new DiskSet(registry));
  auto reactor = ReactorThread::start("disks");
  if (!reactor) return std::unexpected(reactor.error());
  set->reactor_ = std::move(*reactor);
  for (size_t i = 0; i < specs.size(); ++i) {
    DiskEntry& entry = set->entries_.emplace_back(specs[i], (*places)[i]);
    if (entry.spec.file.empty()) continue;
    auto disk = set->reactor_->call([&] { return set->open_one(entry.spec, entry.place.id, warnings); });
    if (!disk) {
      (void)set->close();  // nothing was written to those that are open
      return std::unexpected(disk.error());
    }
    entry.disk = std::move(*disk);
  }
  return set;
}

void DiskSet::set_stop_handler(std::function<void(std::string)> handler) {
  on_stop_ = std::move(handler);
  for (const auto& disk : disks()) stop_for_errors_of(*disk);
}

void DiskSet::stop_for_errors_of(Disk& disk) {
  if (!on_stop_) return;
  disk.set_stop_handler([this, id = disk.id()](const Error& error) {
    on_stop_(fmt::format("disk {}: {}", id, error.message()));
  });
}

std::vector<std::shared_ptr<Disk>> DiskSet::disks() const {
  std::vector<std::shared_ptr<Disk>> there;
  for (const DiskEntry& entry : entries_) {
    if (entry.disk) there.push_back(entry.disk);
  }
  return there;
}

Result<> DiskSet::plug(const DeviceWiring& wiring) {
  unsigned queues = 0;
  for (const DiskEntry& entry : entries_) queues += entry.spec.queues;
  SPINDLE_TRY(make_room_for_open_files(kFilesPerQueue * queues));
  devices_ = std::make_unique<DiskDevices>(reactor_->reactor());
  for (const DiskEntry& entry : entries_) SPINDLE_TRY(devices_->add(entry, wiring));
  return {};
}

std::vector<DrainSection> DiskSet::drain_sections() {
  std::vector<DrainSection> sections;
  sections.reserve(entries_.size());
  for (const auto& disk : disks()) sections.emplace_back(disk->node());
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
    for (const auto& disk : disks()) disk->fail_held();
    if (devices_) co_await devices_->settle();
    for (const auto& disk : disks()) {
      co_await disk->drain();
      disk->hold_errors();
      auto reverted = co_await disk->revert_write_cache();
      if (!reverted) errors.push_back(std::move(*reverted.error()));
    }
  });
  return errors;
}

void DiskSet::quiesce() {
  reactor_->call([&]() -> Task<void> {
    const auto drained = drain_sections();
    const auto all = disks();
    if (devices_) co_await devices_->quiesce(all);
    for (const auto& disk : all) co_await disk->drain();
  });
}

void DiskSet::retry_held() {
  reactor_->call([&]() -> Task<void> {
    for (const auto& disk : disks()) disk->retry_held();
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

Result<DiskEntry*> DiskSet::find_medium(const std::string& id, const char* operation) {
  auto entry = find(id, operation);
  if (entry && !(*entry)->disk)
    return std::unexpected(Error::invalid(operation, id, "there is no medium in the drive"));
  return entry;
}

Result<> DiskSet::set_write_cache(const std::string& id, bool on) {
  auto entry = find(id, "write cache");
  if (!entry) return std::unexpected(std::move(entry.error()));
  if ((*entry)->spec.cdrom) {
    return std::unexpected(
        Error::invalid("write cache", id, "nobody writes to a CD-ROM, so its drive has no write cache"));
  }
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
  auto entry = find_medium(id, "throttle");
  if (!entry) return std::unexpected(std::move(entry.error()));
  reactor_->call([&]() -> Task<void> {
    find_throttle((*entry)->disk->node())->set_limits(limits);  // open_graph() puts one into every graph
    co_return;
  });
  return {};
}

Result<> DiskSet::resize(const std::string& id, uint64_t bytes) {
  auto entry = find_medium(id, "resize");
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
    for (const auto& disk : disks()) disk->fail_held();
    if (devices_) co_await devices_->stop();
    for (const auto& disk : disks()) {
      auto closed = co_await disk->close();
      if (!closed) errors.push_back(std::move(*closed.error()));
    }
  });
  return errors;
}

nlohmann::ordered_json DiskSet::statistics() {
  std::vector<DiskSnapshot> snapshots;
  reactor_->call([&]() -> Task<void> {
    for (const DiskEntry& entry : entries_) snapshots.push_back(snapshot_of(entry, devices_.get()));
    co_return;
  });
  auto list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < entries_.size(); ++i) list.push_back(disk_json(entries_[i], snapshots[i]));
  return list;
}

}  // namespace spindle::vmm
