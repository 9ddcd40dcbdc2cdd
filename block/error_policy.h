// What becomes of a guest's request that the host cannot carry out: rerror= and werror=, as QEMU has them.
//
//   report   the guest gets the error
//   ignore   the guest is told that all is well; what a read brings is undefined, a write is lost
//   stop     the guest stops, the request waits and is tried again when the guest goes on
//   enospc   stop if the host is out of space, report any other error (writes only)
//
// A policy is for errors that may be gone at the next try. It never covers what cannot heal (a request beyond
// the end, a read-only image) and never a flush, nor a write after a failed one: D6 says that nothing may
// claim success then, and that trying again proves nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "block/result.h"

namespace spindle {

enum class ErrorPolicy : uint8_t { Report, Ignore, Stop, StopIfNoSpace };
enum class ErrorAction : uint8_t { Report, Ignore, Stop };

inline ErrorAction action_for(ErrorPolicy policy, const Error& error) {
  const bool no_space = error.kind == ErrorKind::NoSpace;
  if (!no_space && error.kind != ErrorKind::Io && error.kind != ErrorKind::Corrupt)
    return ErrorAction::Report;
  switch (policy) {
    case ErrorPolicy::Report:
      return ErrorAction::Report;
    case ErrorPolicy::Ignore:
      return ErrorAction::Ignore;
    case ErrorPolicy::Stop:
      return ErrorAction::Stop;
    case ErrorPolicy::StopIfNoSpace:
      return no_space ? ErrorAction::Stop : ErrorAction::Report;
  }
  return ErrorAction::Report;
}

inline std::optional<ErrorPolicy> parse_error_policy(std::string_view text) {
  if (text == "report") return ErrorPolicy::Report;
  if (text == "ignore") return ErrorPolicy::Ignore;
  if (text == "stop") return ErrorPolicy::Stop;
  if (text == "enospc") return ErrorPolicy::StopIfNoSpace;
  return std::nullopt;
}

}  // namespace spindle
