#include "vmm/disk_places.h"

#include <fmt/format.h>

#include <set>

#include "devices/ide/piix_ide.h"

namespace spindle::vmm {
namespace {

constexpr unsigned kIdeBuses = ide::kChannels, kIdeUnits = 2;
constexpr unsigned kMaxVirtioDisks = 32 - kFirstVirtioDevice;

std::unexpected<Error> bad_disk(const DiskSpec& spec, std::string detail) {
  return std::unexpected(
      Error{.kind = ErrorKind::Invalid,
            .operation = spec.file.empty() ? "CD-ROM drive without a medium" : "disk " + spec.file,
            .detail = std::move(detail)});
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

}  // namespace spindle::vmm
