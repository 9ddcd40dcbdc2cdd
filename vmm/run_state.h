// RunState: whether the guest runs, as QMP's query-status names it.
#pragma once

#include <cstdint>
#include <string_view>

namespace spindle::vmm {

enum class RunState : uint8_t {
  Running,
  Paused,   ///< the user stopped it
  IoError,  ///< a disk stopped it: rerror= or werror=
};

constexpr std::string_view to_string(RunState state) {
  switch (state) {
    case RunState::Running:
      return "running";
    case RunState::Paused:
      return "paused";
    case RunState::IoError:
      return "io-error";
  }
  return "";
}

}  // namespace spindle::vmm
