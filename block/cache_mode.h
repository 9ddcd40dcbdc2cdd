// The cache modes, as QEMU names them (D9).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace spindle {

enum class CacheMode : uint8_t { Writeback, None, Writethrough, Directsync, Unsafe };

/// True if the guest starts with its write cache enabled (WCE on).
constexpr bool starts_with_write_cache(CacheMode mode) {
  return mode != CacheMode::Writethrough && mode != CacheMode::Directsync;
}
/// True if the host file is opened O_DIRECT.
constexpr bool is_direct(CacheMode mode) {
  return mode == CacheMode::None || mode == CacheMode::Directsync;
}
/// True if no host flush is ever issued.
constexpr bool never_flushes(CacheMode mode) {
  return mode == CacheMode::Unsafe;
}

constexpr std::string_view to_string(CacheMode mode) {
  switch (mode) {
    case CacheMode::Writeback:
      return "writeback";
    case CacheMode::None:
      return "none";
    case CacheMode::Writethrough:
      return "writethrough";
    case CacheMode::Directsync:
      return "directsync";
    case CacheMode::Unsafe:
      return "unsafe";
  }
  return "?";
}

/// nullopt for a name that is no cache mode.
constexpr std::optional<CacheMode> parse_cache_mode(std::string_view name) {
  for (CacheMode mode : {CacheMode::Writeback, CacheMode::None, CacheMode::Writethrough,
                         CacheMode::Directsync, CacheMode::Unsafe}) {
    if (to_string(mode) == name) return mode;
  }
  return std::nullopt;
}

}  // namespace spindle
