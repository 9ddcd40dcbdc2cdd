#include "devices/ide/piix_ide.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace spindle::ide {
namespace {

// Configuration registers (PIIX4 datasheet, function 1).
constexpr unsigned kIdetim = 0x40;  // one word a channel
constexpr unsigned kSidetim = 0x44;
constexpr unsigned kUdmactl = 0x48;
constexpr unsigned kUdmatim = 0x4a;
constexpr uint16_t kIdetimDecode = 1u << 15;
constexpr uint16_t kIdetimWritable = 0xf3ff;  // bits 11-10 are reserved

constexpr uint16_t kStatusFastBackToBack = 1u << 7;
constexpr uint16_t kStatusMediumDevsel = 1u << 9;

constexpr uint64_t kBusMasterPorts = 16;

pci::Identity identity(PiixModel model) {
  return {.vendor = 0x8086,
          .device = static_cast<uint16_t>(model == PiixModel::Piix3 ? 0x7010 : 0x7111),
          .revision = static_cast<uint8_t>(model == PiixModel::Piix3 ? 0 : 1),
          .base_class = 0x01,
          .subclass = 0x01,
          .prog_if = 0x80};  // both channels in compatibility mode, bus master capable
}

// What a drive is called if nobody said; an error if there is no such channel.
Result<> fill_in(unsigned channel, unsigned unit, const std::string& name, const char* model,
                 DriveOptions& options) {
  if (channel >= kChannels) {
    return std::unexpected(Error::invalid(
        "attach", name, fmt::format("the IDE controller has channels 0 and 1, not {}", channel)));
  }
  if (options.serial.empty()) options.serial = fmt::format("SPINDLE-{:04}", 2 * channel + unit + 1);
  if (options.model.empty()) options.model = model;
  return {};
}

}  // namespace

PiixIde::PiixIde(const GuestMemory& memory, Reactor& reactor, std::array<InterruptLine*, kChannels> lines,
                 PiixModel model)
    : PciFunction(identity(model)),
      channels_{Channel(memory, reactor, *lines[0]), Channel(memory, reactor, *lines[1])},
      command_blocks_{CommandBlock(channels_[0]), CommandBlock(channels_[1])},
      control_blocks_{ControlBlock(channels_[0]), ControlBlock(channels_[1])},
      bus_master_ports_(channels_) {
  set16(pci::kStatus, kStatusFastBackToBack | kStatusMediumDevsel);
  add_bar(kBusMasterBar, pci::BarKind::Io, kBusMasterPorts, &bus_master_ports_);
  for (unsigned channel = 0; channel < kChannels; ++channel) {
    set16(kIdetim + 2 * channel, kIdetimDecode);
    set_writable(kIdetim + 2 * channel, 2, kIdetimWritable);
  }
  set_writable(kSidetim, 1, 0xff);
  if (model == PiixModel::Piix4) {
    set_writable(kUdmactl, 1, 0x0f);
    set_writable(kUdmatim, 2, 0x3333);
  }
}

Result<> PiixIde::attach(unsigned channel, unsigned unit, std::shared_ptr<Disk> disk, DriveOptions options) {
  SPINDLE_TRY(fill_in(channel, unit, disk->id(), "SPINDLE HARDDISK", options));
  return channels_[channel].attach(unit, std::move(disk), std::move(options));
}

Result<> PiixIde::attach_cdrom(unsigned channel, unsigned unit, std::shared_ptr<Disk> medium,
                               const std::string& name, DriveOptions options) {
  SPINDLE_TRY(fill_in(channel, unit, name, "SPINDLE DVD-ROM", options));
  return channels_[channel].attach_cdrom(unit, std::move(medium), std::move(options), name);
}

void PiixIde::config_changed() {
  std::lock_guard order(controller_mutex_);
  std::array<bool, kChannels> decoded;
  bool may_master;
  {
    std::lock_guard lock(config_mutex_);
    for (unsigned i = 0; i < kChannels; ++i) decoded[i] = get16(kIdetim + 2 * i) & kIdetimDecode;
    const uint16_t command = get16(pci::kCommand);
    may_master = command & pci::kCommandBusMaster;
  }
  for (unsigned i = 0; i < kChannels; ++i) channels_[i].set_controller(decoded[i], may_master);
}

void PiixIde::reset() {
  PciFunction::reset();
  for (Channel& channel : channels_) channel.reset();
}

unsigned PiixIde::jobs() {
  unsigned running = 0;
  for (Channel& channel : channels_) running += channel.has_job();
  return running;
}

Task<void> PiixIde::drain() {
  for (Channel& channel : channels_) co_await channel.drain();
}

// ---- ports ----

void PiixIde::CommandBlock::read(uint64_t offset, std::span<uint8_t> data) {
  channel_.read_command_block(static_cast<unsigned>(offset), data);
}

std::shared_ptr<ParkedAccess> PiixIde::CommandBlock::write(uint64_t offset, std::span<const uint8_t> data) {
  channel_.write_command_block(static_cast<unsigned>(offset), data);
  return nullptr;
}

void PiixIde::CommandBlock::read_repeated(uint64_t offset, std::span<uint8_t> data, std::size_t width) {
  if (offset == kData) {
    channel_.read_data(data, width);
  } else {
    IoHandler::read_repeated(offset, data, width);
  }
}

void PiixIde::CommandBlock::write_repeated(uint64_t offset, std::span<const uint8_t> data,
                                           std::size_t width) {
  if (offset == kData) {
    channel_.write_data(data, width);
  } else {
    IoHandler::write_repeated(offset, data, width);
  }
}

void PiixIde::ControlBlock::read(uint64_t, std::span<uint8_t> data) {
  std::ranges::fill(data, 0xff);
  data[0] = channel_.read_control();
}

std::shared_ptr<ParkedAccess> PiixIde::ControlBlock::write(uint64_t, std::span<const uint8_t> data) {
  channel_.write_control(data[0]);
  return nullptr;
}

// An access may reach from one channel's registers into the other's.
void PiixIde::BusMasterPorts::read(uint64_t offset, std::span<uint8_t> data) {
  while (!data.empty()) {
    const unsigned at = static_cast<unsigned>(offset % kBmChannelBytes);
    const std::size_t count = std::min<std::size_t>(data.size(), kBmChannelBytes - at);
    channels_[offset / kBmChannelBytes % kChannels].read_bus_master(at, data.first(count));
    offset += count;
    data = data.subspan(count);
  }
}

std::shared_ptr<ParkedAccess> PiixIde::BusMasterPorts::write(uint64_t offset, std::span<const uint8_t> data) {
  while (!data.empty()) {
    const unsigned at = static_cast<unsigned>(offset % kBmChannelBytes);
    const std::size_t count = std::min<std::size_t>(data.size(), kBmChannelBytes - at);
    channels_[offset / kBmChannelBytes % kChannels].write_bus_master(at, data.first(count));
    offset += count;
    data = data.subspan(count);
  }
  return nullptr;
}

}  // namespace spindle::ide
