// DiskSet: the machine's disks, from their descriptions to devices on a bus.
//
// All disks and devices live on one reactor with a thread of its own. Opening, resetting and closing run
// there, and the caller waits. Order at the end, with the vCPUs stopped: the devices let go of their
// requests, each disk drains, flushes and closes, and every error is told.
//
// A CD-ROM drive may be without a medium, and its media may change while the guest runs: the new one is
// opened, the drive gets it in one step, and the old one is closed when the last request has let go of it.
// The guest is not stopped for that, and no other disk is waited for. Requests that wait for throttling go at
// once, those that wait after an error end with it.
//
// Threading: all is asked for by one thread, the machine's.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "block/disk.h"
#include "block/disk_spec.h"
#include "block/format_registry.h"
#include "block/io/reactor.h"
#include "vmm/disk_devices.h"

namespace spindle::vmm {

class DiskSet {
 public:
  /// Opens all of them; `warnings` gets a line for each thing the user should know. Errors are for the user.
  /// `registry` outlives the set.
  static Result<std::unique_ptr<DiskSet>> open(std::span<const DiskSpec> specs,
                                               const FormatRegistry& registry,
                                               std::vector<std::string>& warnings);
  /// close() must have been called if devices were plugged in.
  ~DiskSet();
  DiskSet(const DiskSet&) = delete;
  DiskSet& operator=(const DiskSet&) = delete;

  /// Who stops the guest when a request met an error under rerror= or werror= stop; the line says what
  /// happened. Any thread; must not wait. Before plug().
  void set_stop_handler(std::function<void(std::string)> handler);
  /// Makes the devices and plugs them in.
  Result<> plug(const DeviceWiring& wiring);
  /// Confines the disks' thread (sandbox.h), which may go on to open images.
  void confine();
  /// After the functions were reset (PciBus::reset): waits until no request of before touches guest memory,
  /// and puts the write caches back to their configured modes (D4). Errors of the flush that this may need
  /// are returned.
  std::vector<Error> settle();
  /// With the vCPUs paused: returns when every request that a device has taken was answered, or waits after
  /// an error. What lies in a queue stays there until resume().
  void quiesce();
  /// The guest is about to go on: devices take requests again.
  void resume();
  /// The guest is about to go on: requests that wait after an error are tried again.
  void retry_held();
  /// D3 from the host's side: what the guest is shown changes with it. NotFound for an unknown id.
  Result<> set_write_cache(const std::string& id, bool on);
  /// Checked limits, from now on. NotFound for an unknown id.
  Result<> set_throttle(const std::string& id, const ThrottleLimits& limits);
  /// With the guest at rest (quiesce). The device tells the guest where its bus can: virtio by a
  /// configuration change interrupt; IDE has no such notice and shows it in the next IDENTIFY DEVICE.
  /// NotFound for an unknown id.
  Result<> resize(const std::string& id, uint64_t bytes);

  // CD-ROM drives. NotFound for an unknown id, Invalid for what is no such drive, InUse for a tray that the
  // guest has locked: then nothing is done but to let the guest know. `force` breaks the lock.

  Result<> open_tray(const std::string& id, bool force);
  Result<> close_tray(const std::string& id);
  /// The tray opens, and the medium is closed. What closing it meets is returned, after all is done.
  Result<> eject(const std::string& id, bool force);
  /// The same, with another medium that takes the old one's place; the tray closes. One that cannot be opened
  /// leaves the drive as it was.
  Result<> change_medium(const std::string& id, const std::string& file, const std::string& format,
                         bool force, std::vector<std::string>& warnings);

  /// The end of all disks. Once. The errors of all steps.
  std::vector<Error> close();

  /// Counters of all disks, in the order they were given.
  nlohmann::ordered_json statistics();

 private:
  explicit DiskSet(const FormatRegistry& registry);
  Result<DiskEntry*> find(const std::string& id, const char* operation);
  /// The same for what needs a medium.
  Result<DiskEntry*> find_medium(const std::string& id, const char* operation);
  Result<DiskEntry*> find_cdrom(const std::string& id, const char* operation);
  void stop_for_errors_of(Disk& disk);
  /// Those that are there.
  std::vector<std::shared_ptr<Disk>> disks() const;
  /// Lifts the limits of all disks for as long as they exist: nobody waits for those while all are waited
  /// for.
  std::vector<DrainSection> drain_sections();
  Task<Result<std::shared_ptr<Disk>>> open_one(DiskSpec spec, std::string id,
                                               std::vector<std::string>& warnings);
  /// `spec` describes `medium`, which may be none.
  Task<Result<>> exchange(DiskEntry& entry, DiskSpec spec, std::shared_ptr<Disk> medium, bool force);

  const FormatRegistry& registry_;
  std::function<void(std::string)> on_stop_;
  std::unique_ptr<ReactorThread> reactor_;
  std::vector<DiskEntry> entries_;
  std::unique_ptr<DiskDevices> devices_;
};

}  // namespace spindle::vmm
