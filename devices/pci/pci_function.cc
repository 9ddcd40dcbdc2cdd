#include "devices/pci/pci_function.h"

#include <bit>
#include <cassert>

namespace spindle::pci {

PciFunction::PciFunction(const Identity& identity) {
  set16(kVendorId, identity.vendor);
  set16(kDeviceId, identity.device);
  set8(kRevisionId, identity.revision);
  set8(kClassProgIf, identity.prog_if);
  set8(kSubclass, identity.subclass);
  set8(kClass, identity.base_class);
  set16(kSubsystemVendorId, identity.subsystem_vendor);
  set16(kSubsystemId, identity.subsystem);
  set8(kInterruptPin, identity.interrupt_pin);
  set_writable(kCommand, 2, kCommandIo | kCommandMemory | kCommandBusMaster | kCommandInterruptDisable);
  set_writable(kInterruptLine, 1, 0xff);
}

void PciFunction::set16(unsigned offset, uint16_t value) {
  config_[offset] = static_cast<uint8_t>(value);
  config_[offset + 1] = static_cast<uint8_t>(value >> 8);
}

void PciFunction::set32(unsigned offset, uint32_t value) {
  set16(offset, static_cast<uint16_t>(value));
  set16(offset + 2, static_cast<uint16_t>(value >> 16));
}

uint16_t PciFunction::get16(unsigned offset) const {
  return static_cast<uint16_t>(config_[offset] | config_[offset + 1] << 8);
}

uint32_t PciFunction::get32(unsigned offset) const {
  return get16(offset) | static_cast<uint32_t>(get16(offset + 2)) << 16;
}

void PciFunction::set_writable(unsigned offset, unsigned width, uint32_t mask) {
  for (unsigned i = 0; i < width; ++i) writable_[offset + i] = static_cast<uint8_t>(mask >> (8 * i));
}

void PciFunction::add_bar(unsigned index, BarKind kind, uint64_t size, IoHandler* handler) {
  assert(index < bars_.size() && std::has_single_bit(size));
  bars_[index] = Bar{.kind = kind, .size = size, .handler = handler};
  const unsigned offset = kBar0 + 4 * index;
  const uint64_t address_bits =
      ~(size - 1);  // the low bits read as zero: this is how a driver learns the size
  switch (kind) {
    case BarKind::Io:
      set32(offset, 1);
      set_writable(offset, 4, static_cast<uint32_t>(address_bits) & 0xffff);
      break;
    case BarKind::Memory32:
      set_writable(offset, 4, static_cast<uint32_t>(address_bits));
      break;
    case BarKind::Memory64:
      set32(offset, 4);
      set_writable(offset, 4, static_cast<uint32_t>(address_bits));
      set_writable(offset + 4, 4, static_cast<uint32_t>(address_bits >> 32));
      break;
  }
}

unsigned PciFunction::add_capability(uint8_t id, unsigned length) {
  const unsigned offset = next_capability_;
  assert(offset + length <= config_.size());
  config_[offset] = id;
  config_[offset + 1] = config_[kCapabilitiesPointer];  // the newest comes first in the list
  config_[kCapabilitiesPointer] = static_cast<uint8_t>(offset);
  set16(kStatus, get16(kStatus) | kStatusCapabilities);
  next_capability_ = (offset + length + 3) & ~3u;
  return offset;
}

uint32_t PciFunction::read_config(unsigned offset, unsigned width) {
  if (width > 4 || offset >= config_.size() || width > config_.size() - offset) return 0xffffffff;
  std::lock_guard lock(config_mutex_);
  before_config_read(offset, width);
  uint32_t value = 0;
  for (unsigned i = 0; i < width; ++i) value |= static_cast<uint32_t>(config_[offset + i]) << (8 * i);
  return value;
}

void PciFunction::write_config(unsigned offset, unsigned width, uint32_t value) {
  if (width > 4 || offset >= config_.size() || width > config_.size() - offset) return;
  bool moved;
  {
    std::lock_guard lock(config_mutex_);
    if (!power_on_saved_) {
      power_on_ = config_;
      power_on_saved_ = true;
    }
    for (unsigned i = 0; i < width; ++i) {
      const uint8_t mask = writable_[offset + i];
      const auto byte = static_cast<uint8_t>(value >> (8 * i));
      config_[offset + i] = static_cast<uint8_t>((config_[offset + i] & ~mask) | (byte & mask));
    }
    after_config_write(offset, width);
    const unsigned end = offset + width;
    moved = (offset < kStatus && end > kCommand) || (offset < kBar0 + 24 && end > kBar0);
  }
  config_changed();
  if (moved && listener_) listener_();
}

uint64_t PciFunction::bar_address(unsigned index) const {
  const uint32_t low = get32(kBar0 + 4 * index);
  switch (bars_[index].kind) {
    case BarKind::Io:
      return low & 0xfffc;
    case BarKind::Memory32:
      return low & 0xfffffff0;
    case BarKind::Memory64:
      return (low & 0xfffffff0) | static_cast<uint64_t>(get32(kBar0 + 4 * index + 4)) << 32;
  }
  return 0;
}

std::vector<BarMapping> PciFunction::mappings() const {
  std::lock_guard lock(config_mutex_);
  std::vector<BarMapping> result;
  const uint16_t command = get16(kCommand);
  for (unsigned i = 0; i < bars_.size(); ++i) {
    if (bars_[i].size == 0) continue;
    const bool io = bars_[i].kind == BarKind::Io;
    if (!(command & (io ? kCommandIo : kCommandMemory))) continue;
    const uint64_t address = bar_address(i);
    if (address == 0 || address + bars_[i].size < address) continue;
    result.push_back(
        {.index = i, .io = io, .address = address, .size = bars_[i].size, .handler = bars_[i].handler});
  }
  return result;
}

void PciFunction::assign_bar(unsigned index, uint64_t address) {
  const unsigned offset = kBar0 + 4 * index;
  write_config(offset, 4, static_cast<uint32_t>(address));
  if (bars_[index].kind == BarKind::Memory64)
    write_config(offset + 4, 4, static_cast<uint32_t>(address >> 32));
}

uint64_t PciFunction::bar_size(unsigned index) const {
  return index < bars_.size() ? bars_[index].size : 0;
}

bool PciFunction::bar_is_io(unsigned index) const {
  return bars_[index].kind == BarKind::Io;
}

void PciFunction::reset() {
  {
    std::lock_guard lock(config_mutex_);
    if (power_on_saved_) config_ = power_on_;
  }
  config_changed();
  if (listener_) listener_();
}

}  // namespace spindle::pci
