// The part of DiskSet that is about CD-ROM drives and their media.
#include <fmt/format.h>

#include "block/filters/throttle_node.h"
#include "vmm/disk_set.h"

namespace spindle::vmm {
namespace {

std::unexpected<Error> locked(const std::string& id, const char* operation) {
  return std::unexpected(Error{.kind = ErrorKind::InUse,
                               .operation = operation,
                               .node = id,
                               .detail =
                                   "the guest has locked the tray, and is told of the wish: try again when "
                                   "it has let go, or give force, which takes the medium from it"});
}

// Limits belong to the drive: the next medium gets those that were set last.
DiskSpec kept(const DiskEntry& entry) {
  DiskSpec spec = without_medium(entry.spec);
  if (entry.disk) spec.throttling = find_throttle(entry.disk->node())->limits();
  return spec;
}

}  // namespace

Result<DiskEntry*> DiskSet::find_cdrom(const std::string& id, const char* operation) {
  auto entry = find(id, operation);
  if (entry && !(*entry)->spec.cdrom)
    return std::unexpected(Error::invalid(operation, id, "only CD-ROM drives have a tray: media=cdrom"));
  return entry;
}

Result<> DiskSet::open_tray(const std::string& id, bool force) {
  constexpr const char* kOperation = "opening the tray";
  auto entry = find_cdrom(id, kOperation);
  if (!entry) return std::unexpected(std::move(entry.error()));
  if (!devices_->channel(**entry).open_tray((*entry)->place.unit, force)) return locked(id, kOperation);
  return {};
}

Result<> DiskSet::close_tray(const std::string& id) {
  auto entry = find_cdrom(id, "closing the tray");
  if (!entry) return std::unexpected(std::move(entry.error()));
  devices_->channel(**entry).close_tray((*entry)->place.unit);
  return {};
}

Result<> DiskSet::eject(const std::string& id, bool force) {
  auto entry = find_cdrom(id, "eject");
  if (!entry) return std::unexpected(std::move(entry.error()));
  return reactor_->call([&] { return exchange(**entry, kept(**entry), nullptr, force); });
}

Result<> DiskSet::change_medium(const std::string& id, const std::string& file, const std::string& format,
                                bool force, std::vector<std::string>& warnings) {
  auto entry = find_cdrom(id, "changing the medium");
  if (!entry) return std::unexpected(std::move(entry.error()));
  return reactor_->call([&]() -> Task<Result<>> {
    auto spec = with_medium(kept(**entry), file, format, registry_);
    if (!spec) co_return std::unexpected(std::move(spec.error()));
    auto opening = open_one(*spec, id, warnings);
    auto medium = co_await opening;
    if (!medium) co_return std::unexpected(std::move(medium.error()));
    auto exchanging = exchange(**entry, std::move(*spec), std::move(*medium), force);
    co_return co_await exchanging;
  });
}

Task<Result<>> DiskSet::exchange(DiskEntry& entry, DiskSpec spec, std::shared_ptr<Disk> medium, bool force) {
  const char* const operation = medium ? "changing the medium" : "eject";
  std::shared_ptr<Disk> old = medium;
  ide::Channel& channel = devices_->channel(entry);
  if (!channel.change_medium(entry.place.unit, old, force)) {
    if (medium) (void)co_await medium->close();  // the lock is what there is to tell
    co_return locked(entry.place.id, operation);
  }
  entry.spec = std::move(spec);
  entry.disk = std::move(medium);
  if (!old) co_return Result<>{};
  Result<> closed;
  {
    const DrainSection drained(old->node());
    old->fail_held();
    co_await channel.let_go(*old);
    closed = co_await old->close();
  }
  entry.earlier.add(*old);
  if (closed) co_return closed;
  co_return std::unexpected(
      Error{.kind = closed.error()->kind,
            .operation = operation,
            .node = entry.place.id,
            .detail = "it is done, but what was in it did not close cleanly: " + closed.error()->message()});
}

}  // namespace spindle::vmm
