#include "devices/pci/msix.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace spindle::pci {
namespace {

// An entry: message address (8 bytes), message data (4), vector control (4), of which bit 0 is the mask.
constexpr unsigned kData = 8;
constexpr unsigned kControl = 12;
constexpr uint8_t kMasked = 1;

}  // namespace

MsiX::MsiX(unsigned vectors, MessageRouter& router) : router_(router), entries_(vectors) {
  assert(vectors >= 1 && vectors <= 2048);
  reset();
}

void MsiX::reset() {
  std::lock_guard lock(mutex_);
  enabled_ = function_masked_ = false;
  for (Entry& entry : entries_) {
    entry = Entry{};
    entry.bytes[kControl] = kMasked;
  }
}

bool MsiX::live(const Entry& entry) const {
  return enabled_ && !function_masked_ && !(entry.bytes[kControl] & kMasked);
}

// Something about the vector changed: if it is live, the router must know it and what is pending is due.
void MsiX::refresh(unsigned vector) {
  Entry& entry = entries_[vector];
  if (!live(entry)) return;
  if (!entry.routed) {
    uint64_t address;
    uint32_t data;
    std::memcpy(&address, entry.bytes.data(), sizeof address);
    std::memcpy(&data, entry.bytes.data() + kData, sizeof data);
    router_.route(vector, address, data);
    entry.routed = true;
  }
  if (std::exchange(entry.pending, false)) router_.signal(vector);
}

void MsiX::read_table(uint64_t offset, std::span<uint8_t> data) const {
  std::lock_guard lock(mutex_);
  for (uint8_t& byte : data) {
    byte = offset < table_bytes() ? entries_[offset / kEntryBytes].bytes[offset % kEntryBytes] : 0;
    ++offset;
  }
}

void MsiX::write_table(uint64_t offset, std::span<const uint8_t> data) {
  if (data.empty() || offset >= table_bytes()) return;
  std::lock_guard lock(mutex_);
  const uint64_t end = std::min<uint64_t>(table_bytes(), offset + data.size());
  for (uint64_t at = offset; at < end; ++at) {
    Entry& entry = entries_[at / kEntryBytes];
    const unsigned field = at % kEntryBytes;
    uint8_t value = data[at - offset];
    if (field == kControl) value &= kMasked;
    if (field > kControl) value = 0;  // reserved
    if (field < kControl && entry.bytes[field] != value) entry.routed = false;
    entry.bytes[field] = value;
  }
  for (auto vector = offset / kEntryBytes; vector <= (end - 1) / kEntryBytes; ++vector) {
    refresh(static_cast<unsigned>(vector));
  }
}

void MsiX::read_pending(uint64_t offset, std::span<uint8_t> data) const {
  std::lock_guard lock(mutex_);
  for (uint8_t& byte : data) {
    byte = 0;
    for (unsigned bit = 0; bit < 8; ++bit) {
      const uint64_t vector = offset * 8 + bit;
      if (offset < pending_bytes() && vector < entries_.size() && entries_[vector].pending)
        byte |= static_cast<uint8_t>(1u << bit);
    }
    ++offset;
  }
}

void MsiX::set_control(uint16_t control) {
  std::lock_guard lock(mutex_);
  enabled_ = control & kMsixEnable;
  function_masked_ = control & kMsixFunctionMask;
  for (unsigned vector = 0; vector < entries_.size(); ++vector) refresh(vector);
}

bool MsiX::enabled() const {
  std::lock_guard lock(mutex_);
  return enabled_;
}

void MsiX::signal(unsigned vector) {
  std::lock_guard lock(mutex_);
  if (!enabled_ || vector >= entries_.size()) return;
  if (live(entries_[vector])) {
    router_.signal(vector);
  } else {
    entries_[vector].pending = true;
  }
}

}  // namespace spindle::pci
