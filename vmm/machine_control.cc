#include "vmm/machine_control.h"

#include "vmm/machine.h"

namespace spindle::vmm {

template <typename T, typename Work>
Result<T> MachineControl::call(Work work) {
  Result<T> result;
  if (!machine_.call([&] { result = work(); })) {
    return std::unexpected(Error{.operation = "control", .node = "", .detail = "the machine is ending"});
  }
  return result;
}

Result<RunState> MachineControl::run_state() {
  return call<RunState>([this]() -> Result<RunState> { return machine_.run_state(); });
}

Result<> MachineControl::stop() {
  return call<void>([this]() -> Result<> {
    machine_.stop();
    return {};
  });
}

Result<> MachineControl::cont() {
  return call<void>([this]() -> Result<> {
    machine_.cont();
    return {};
  });
}

Result<> MachineControl::system_reset() {
  machine_.post({MachineEvent::Kind::Reset, {}});
  return {};
}

Result<> MachineControl::quit() {
  machine_.post({MachineEvent::Kind::Quit, "quit by control command"});
  return {};
}

Result<nlohmann::ordered_json> MachineControl::disks() {
  return call<nlohmann::ordered_json>(
      [this]() -> Result<nlohmann::ordered_json> { return machine_.disks().statistics(); });
}

Result<> MachineControl::set_write_cache(const std::string& disk, bool on) {
  return call<void>([&]() -> Result<> { return machine_.disks().set_write_cache(disk, on); });
}

Result<> MachineControl::set_throttle(const std::string& disk, const ThrottleLimits& limits) {
  return call<void>([&]() -> Result<> { return machine_.disks().set_throttle(disk, limits); });
}

Result<> MachineControl::resize(const std::string& disk, uint64_t bytes) {
  return call<void>([&]() -> Result<> { return machine_.resize_disk(disk, bytes); });
}

Result<> MachineControl::open_tray(const std::string& drive, bool force) {
  return call<void>([&]() -> Result<> { return machine_.disks().open_tray(drive, force); });
}

Result<> MachineControl::close_tray(const std::string& drive) {
  return call<void>([&]() -> Result<> { return machine_.disks().close_tray(drive); });
}

Result<> MachineControl::eject(const std::string& drive, bool force) {
  return call<void>([&]() -> Result<> { return machine_.disks().eject(drive, force); });
}

Result<> MachineControl::change_medium(const std::string& drive, const std::string& file,
                                       const std::string& format, bool force) {
  return call<void>([&]() -> Result<> { return machine_.change_medium(drive, file, format, force); });
}

Result<> MachineControl::system_powerdown() {
  return call<void>([this]() -> Result<> {
    machine_.press_power_button();
    return {};
  });
}

Result<> MachineControl::start_trace(const std::string& file) {
  return call<void>([&]() -> Result<> { return machine_.tracer().start(file); });
}

Result<> MachineControl::stop_trace() {
  return call<void>([this]() -> Result<> { return machine_.tracer().stop(); });
}

Result<trace::Tracer::Status> MachineControl::trace_status() {
  return call<trace::Tracer::Status>(
      [this]() -> Result<trace::Tracer::Status> { return machine_.tracer().status(); });
}

}  // namespace spindle::vmm
