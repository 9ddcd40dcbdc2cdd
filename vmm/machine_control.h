// MachineControl: carries out on the machine what control connections ask for.
//
// Every request runs on the machine's own thread, between its events (Machine::call), so it never meets a
// reset or the end half way. Once the machine ends, requests are refused.
#pragma once

#include <nlohmann/json.hpp>

#include "vmm/control/target.h"

namespace spindle::vmm {

class Machine;

class MachineControl final : public ControlTarget {
 public:
  explicit MachineControl(Machine& machine) : machine_(machine) {}

  Result<RunState> run_state() override;
  Result<> stop() override;
  Result<> cont() override;
  Result<> system_reset() override;
  Result<> quit() override;
  Result<nlohmann::ordered_json> disks() override;
  Result<> set_write_cache(const std::string& disk, bool on) override;
  Result<> set_throttle(const std::string& disk, const ThrottleLimits& limits) override;
  Result<> resize(const std::string& disk, uint64_t bytes) override;
  Result<> system_powerdown() override;
  Result<> start_trace(const std::string& file) override;
  Result<> stop_trace() override;
  Result<trace::Tracer::Status> trace_status() override;
  Result<> open_tray(const std::string& drive, bool force) override;
  Result<> close_tray(const std::string& drive) override;
  Result<> eject(const std::string& drive, bool force) override;
  Result<> change_medium(const std::string& drive, const std::string& file, const std::string& format,
                         bool force) override;

 private:
  template <typename T, typename Work>
  Result<T> call(Work work);

  Machine& machine_;
};

}  // namespace spindle::vmm
