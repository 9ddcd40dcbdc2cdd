// ControlTarget: what a control connection may ask of a running machine.
//
// The seam between the protocol (commands.h) and the machine (machine_control.h): tests put something smaller
// behind it, which needs no KVM.
//
// Threading: called by the control thread only, which waits for the answer. Each method returns when it has
// been done, not when it was asked for.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "block/filters/throttle_limits.h"
#include "block/result.h"
#include "block/trace/tracer.h"
#include "vmm/run_state.h"

namespace spindle::vmm {

class ControlTarget {
 public:
  virtual ~ControlTarget() = default;

  virtual Result<RunState> run_state() = 0;
  /// Pauses the vCPUs and waits until no disk has a request in flight. Stopping what is stopped does nothing.
  virtual Result<> stop() = 0;
  /// Requests that wait after an error are tried again.
  virtual Result<> cont() = 0;
  /// Machine reset, as by the guest; with --no-reboot it ends the run. Only asked for here.
  virtual Result<> system_reset() = 0;
  /// Ends the run with status 0 after drain, flush and close. Only asked for here.
  virtual Result<> quit() = 0;

  /// One object a disk, as DiskSet::statistics() has them.
  virtual Result<nlohmann::ordered_json> disks() = 0;
  /// D3, from the host's side. NotFound for an unknown id.
  virtual Result<> set_write_cache(const std::string& disk, bool on) = 0;
  /// Limits that have passed check_throttle_limits(). NotFound for an unknown id.
  virtual Result<> set_throttle(const std::string& disk, const ThrottleLimits& limits) = 0;
  /// Another size, in bytes, while the guest is paused for it. NotFound for an unknown id.
  virtual Result<> resize(const std::string& disk, uint64_t bytes) = 0;
  /// CD-ROM drives, as DiskSet has them: a tray that the guest has locked opens by force only. NotFound for
  /// an unknown id.
  virtual Result<> open_tray(const std::string& drive, bool force) = 0;
  virtual Result<> close_tray(const std::string& drive) = 0;
  virtual Result<> eject(const std::string& drive, bool force) = 0;
  virtual Result<> change_medium(const std::string& drive, const std::string& file, const std::string& format,
                                 bool force) = 0;
  /// The power button: the guest is asked to switch itself off. Only asked for here.
  virtual Result<> system_powerdown() = 0;
  /// Records a trace into `file` (relative to the machine's working directory) until stop_trace().
  virtual Result<> start_trace(const std::string& file) = 0;
  virtual Result<> stop_trace() = 0;
  virtual Result<trace::Tracer::Status> trace_status() = 0;
};

}  // namespace spindle::vmm
