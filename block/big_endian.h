// Numbers in files whose format says big endian: qcow2.
#pragma once

#include <endian.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace spindle::big_endian {

inline void put16(std::byte* at, uint16_t value) {
  value = htobe16(value);
  std::memcpy(at, &value, sizeof value);
}
inline void put32(std::byte* at, uint32_t value) {
  value = htobe32(value);
  std::memcpy(at, &value, sizeof value);
}
inline void put64(std::byte* at, uint64_t value) {
  value = htobe64(value);
  std::memcpy(at, &value, sizeof value);
}
inline uint16_t get16(const std::byte* at) {
  uint16_t value;
  std::memcpy(&value, at, sizeof value);
  return be16toh(value);
}
inline uint32_t get32(const std::byte* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return be32toh(value);
}
inline uint64_t get64(const std::byte* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return be64toh(value);
}

}  // namespace spindle::big_endian
