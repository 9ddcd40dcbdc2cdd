#include "vmm/pci_bus.h"

#include <fmt/format.h>

#include <algorithm>

#include "vmm/layout.h"

namespace spindle::vmm {
namespace {

constexpr uint32_t kAddressEnable = 1u << 31;
constexpr uint8_t kMultiFunction = 1u << 7;

uint32_t little_endian(std::span<const uint8_t> bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) value |= static_cast<uint32_t>(bytes[i]) << (8 * i);
  return value;
}

void to_little_endian(uint32_t value, std::span<uint8_t> bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
}

// Hands out aligned addresses of a window from below.
class Allocator {
 public:
  Allocator(uint64_t start, uint64_t end) : next_(start), end_(end) {}
  std::optional<uint64_t> take(uint64_t size) {
    const uint64_t at = (next_ + size - 1) & ~(size - 1);
    if (at > end_ || size > end_ - at) return std::nullopt;
    next_ = at + size;
    return at;
  }

 private:
  uint64_t next_;
  uint64_t end_;
};

}  // namespace

// Only a dword is the address; narrower accesses go to whoever else lives at these ports (reset control at
// CF9h).
class PciBus::ConfigAddress final : public IoHandler {
 public:
  explicit ConfigAddress(PciBus& bus) : bus_(bus) {}
  void read(uint64_t, std::span<uint8_t> data) override {
    if (data.size() != 4) {
      std::ranges::fill(data, uint8_t{0xff});
      return;
    }
    std::lock_guard lock(bus_.address_mutex_);
    to_little_endian(bus_.address_, data);
  }
  std::shared_ptr<ParkedAccess> write(uint64_t, std::span<const uint8_t> data) override {
    if (data.size() != 4) return nullptr;
    std::lock_guard lock(bus_.address_mutex_);
    bus_.address_ = little_endian(data) & ~0x7f000003u;  // reserved bits read as zero
    return nullptr;
  }

 private:
  PciBus& bus_;
};

class PciBus::ConfigData final : public IoHandler {
 public:
  explicit ConfigData(PciBus& bus) : bus_(bus) {}
  void read(uint64_t offset, std::span<uint8_t> data) override {
    to_little_endian(bus_.read_config(static_cast<unsigned>(offset), static_cast<unsigned>(data.size())),
                     data);
  }
  std::shared_ptr<ParkedAccess> write(uint64_t offset, std::span<const uint8_t> data) override {
    bus_.write_config(static_cast<unsigned>(offset), static_cast<unsigned>(data.size()), little_endian(data));
    return nullptr;
  }

 private:
  PciBus& bus_;
};

PciBus::PciBus(IoSpace& ports, IoSpace& memory, std::array<SharedPin*, 4> pins)
    : ports_(ports),
      memory_(memory),
      pins_(pins),
      address_port_(std::make_unique<ConfigAddress>(*this)),
      data_port_(std::make_unique<ConfigData>(*this)) {
  ports_.add(kPortPciAddress, 4, *address_port_);
  ports_.add(kPortPciData, 4, *data_port_);
}

PciBus::~PciBus() {
  for (const Plugged& plugged : functions_) plugged.function->set_mapping_listener(nullptr);
}

pci::PciFunction* PciBus::find(PciSlot slot) const {
  for (const Plugged& plugged : functions_) {
    if (plugged.slot == slot) return plugged.function;
  }
  return nullptr;
}

Result<> PciBus::add(PciSlot slot, pci::PciFunction& function) {
  if (slot.device > 31 || slot.function > 7 || find(slot)) {
    return std::unexpected(
        Error::invalid("plug", fmt::format("PCI slot {:02x}.{}", slot.device, slot.function),
                       "taken already, or there is no such slot: the bus holds 32 devices; use fewer disks"));
  }
  functions_.push_back({slot, &function});
  std::ranges::sort(functions_, {}, &Plugged::slot);
  function.set_mapping_listener([this, &function] { update_windows(function); });
  return {};
}

InterruptLine& PciBus::interrupt(PciSlot slot, unsigned pin) {
  return pins_[interrupt_gsi(slot, pin) - kGsiPciFirst]->add_input();
}

unsigned PciBus::interrupt_gsi(PciSlot slot, unsigned pin) {
  return kGsiPciFirst + (slot.device + pin - 1) % kGsiPciCount;
}

void PciBus::update_windows(pci::PciFunction& function) {
  std::lock_guard lock(windows_mutex_);
  std::vector<IoSpace::Window> io, memory;
  for (const pci::BarMapping& mapping : function.mappings()) {
    (mapping.io ? io : memory).push_back({mapping.address, mapping.size, mapping.handler});
  }
  ports_.set_windows(&function, io);
  memory_.set_windows(&function, memory);
}

Result<> PciBus::assign_resources() {
  Allocator io(kPciIoStart, kPciIoEnd), memory(kPciMemoryStart, kPciMemoryEnd);
  for (const Plugged& plugged : functions_) {
    pci::PciFunction& function = *plugged.function;
    for (unsigned bar = 0; bar < 6; ++bar) {
      const uint64_t size = function.bar_size(bar);
      if (size == 0) continue;
      const auto address = (function.bar_is_io(bar) ? io : memory).take(size);
      if (!address) {
        return std::unexpected(Error::invalid(
            "place", fmt::format("PCI function {:02x}.{}", plugged.slot.device, plugged.slot.function),
            "the PCI windows are full; use fewer disks"));
      }
      function.assign_bar(bar, *address);
    }
    if (const auto pin = function.read_config(pci::kInterruptPin, 1); pin != 0) {
      function.write_config(pci::kInterruptLine, 1, interrupt_gsi(plugged.slot, pin));
    }
    function.write_config(pci::kCommand, 2, pci::kCommandIo | pci::kCommandMemory);
  }
  return {};
}

void PciBus::reset() {
  {
    std::lock_guard lock(address_mutex_);
    address_ = 0;
  }
  for (const Plugged& plugged : functions_) plugged.function->reset();
}

pci::PciFunction* PciBus::addressed(unsigned& offset) {
  std::lock_guard lock(address_mutex_);
  const unsigned bus = (address_ >> 16) & 0xff;
  if (!(address_ & kAddressEnable) || bus != 0) return nullptr;
  offset = address_ & 0xfc;
  return find({.device = (address_ >> 11) & 0x1f, .function = (address_ >> 8) & 7});
}

uint32_t PciBus::read_config(unsigned byte, unsigned width) {
  unsigned offset = 0;
  pci::PciFunction* function = addressed(offset);
  return function ? function->read_config(offset + byte, width) : 0xffffffff;
}

void PciBus::write_config(unsigned byte, unsigned width, uint32_t value) {
  unsigned offset = 0;
  if (pci::PciFunction* function = addressed(offset)) function->write_config(offset + byte, width, value);
}

HostBridge::HostBridge()
    : PciFunction({.vendor = 0x8086, .device = 0x1237, .revision = 2, .base_class = 0x06, .subclass = 0x00}) {
}

IsaBridge::IsaBridge()
    : PciFunction({.vendor = 0x8086, .device = 0x7110, .base_class = 0x06, .subclass = 0x01}) {
  set8(pci::kHeaderType, kMultiFunction);
}

}  // namespace spindle::vmm
