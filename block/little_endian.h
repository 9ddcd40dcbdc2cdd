// Numbers in files, which are little endian in all of ours.
#pragma once

#include <endian.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace spindle {

inline void put32(std::byte* at, uint32_t value) {
  value = htole32(value);
  std::memcpy(at, &value, sizeof value);
}
inline void put64(std::byte* at, uint64_t value) {
  value = htole64(value);
  std::memcpy(at, &value, sizeof value);
}
inline uint32_t get32(const std::byte* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return le32toh(value);
}
inline uint64_t get64(const std::byte* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return le64toh(value);
}

}  // namespace spindle
