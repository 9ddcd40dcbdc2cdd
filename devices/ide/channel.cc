#include "devices/ide/channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace spindle::ide {
namespace {

// What an undriven bus reads: pulled up, but for DD7, which ATA wants pulled down.
constexpr uint8_t kFloating = 0x7f;

}  // namespace

Channel::Channel(const GuestMemory& memory, Reactor& reactor, InterruptLine& line)
    : memory_(memory), reactor_(reactor), line_(line), bus_master_(memory) {}

Result<> Channel::attach(unsigned unit, std::shared_ptr<Disk> disk, DriveOptions options) {
  const std::string name = disk->id();
  SPINDLE_TRY(check(options));
  return add(unit, std::make_unique<Drive>(std::move(disk), std::move(options), unit), name);
}

Result<> Channel::attach_cdrom(unsigned unit, std::shared_ptr<Disk> medium, DriveOptions options,
                               const std::string& name) {
  SPINDLE_TRY(check(options));
  return add(unit,
             std::make_unique<Drive>(std::make_unique<Cdrom>(std::move(medium)), std::move(options), unit),
             name);
}

Result<> Channel::add(unsigned unit, std::unique_ptr<Drive> drive, const std::string& name) {
  if (unit > 1) {
    return std::unexpected(
        Error::invalid("attach", name, fmt::format("an IDE channel has units 0 and 1, not {}", unit)));
  }
  std::lock_guard lock(mutex_);
  if (drives_[unit]) {
    return std::unexpected(Error::invalid("attach", name, fmt::format("unit {} has a drive already", unit)));
  }
  drives_[unit] = std::move(drive);
  if (Drive* other = drives_[1 - unit].get()) {
    drives_[unit]->alone = false;
    other->alone = false;
  }
  return {};
}

// ---- registers ----

uint8_t Channel::status() const {
  const Drive* drive = selected();
  if (!drive) return selected_ == 1 && drives_[0] ? 0 : kFloating;
  // The other bits mean nothing while BSY is set; drives tend to leave DRDY up.
  if (busy()) return kBsy | kReady;
  return transferring() ? drive->status | kDrq : drive->status;
}

uint8_t Channel::read_register(unsigned offset) {
  if (offset == kStatus) {
    const uint8_t value = status();
    if (Drive* drive = selected()) {
      drive->interrupt_pending = false;
      update_line();
    }
    return value;
  }
  const Drive* drive = selected() ? selected() : (selected_ == 1 ? drives_[0].get() : nullptr);
  if (!drive) return kFloating;
  const TaskFile& registers = drive->registers;
  const bool hob = control_ & kControlHob;
  const auto shown = [hob](TaskFile::Register r) { return hob ? r.previous : r.current; };
  switch (offset) {
    case kError:
      return drive->error;
    case kSectorCount:
      return shown(registers.count);
    case kLbaLow:
      return shown(registers.lba_low);
    case kLbaMid:
      return shown(registers.lba_mid);
    case kLbaHigh:
      return shown(registers.lba_high);
    case kDevice: {
      const uint8_t dev = selected_ == 1 ? kDeviceDev : 0;
      return static_cast<uint8_t>((registers.device & ~kDeviceDev) | dev);
    }
  }
  return 0;
}

void Channel::write_register(unsigned offset, uint8_t value) {
  // ATA/ATAPI-6, 6.20: any write to the command block ends the showing of previous values.
  control_ &= ~kControlHob;
  if (Drive* drive = selected(); drive && drive->is_packet() && offset == kCommand && value == kDeviceReset) {
    device_reset(*drive);
    return;
  }
  // A host must not write while BSY or DRQ is set; one that does changes nothing under a running command.
  if (busy() || transferring()) return;
  if (offset == kCommand) {
    start_command(value);
    return;
  }
  for (auto& drive : drives_) {
    if (!drive) continue;
    TaskFile& registers = drive->registers;
    switch (offset) {
      case kFeatures:
        registers.features.push(value);
        break;
      case kSectorCount:
        registers.count.push(value);
        break;
      case kLbaLow:
        registers.lba_low.push(value);
        break;
      case kLbaMid:
        registers.lba_mid.push(value);
        break;
      case kLbaHigh:
        registers.lba_high.push(value);
        break;
      case kDevice:
        registers.device = value;
        break;
    }
  }
  if (offset == kDevice) {
    selected_ = value & kDeviceDev ? 1 : 0;
    update_line();
  }
}

void Channel::read_command_block(unsigned offset, std::span<uint8_t> data) {
  std::lock_guard lock(mutex_);
  if (!decoded_) {
    std::ranges::fill(data, 0xff);
    return;
  }
  if (offset == kData) {
    const std::size_t moved = take_data(data);
    std::ranges::fill(data.subspan(moved), empty() ? 0xff : 0);
    return;
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = offset + i <= kStatus ? read_register(offset + static_cast<unsigned>(i)) : 0xff;
  }
}

void Channel::write_command_block(unsigned offset, std::span<const uint8_t> data) {
  std::lock_guard lock(mutex_);
  if (!decoded_) return;
  if (offset == kData) {
    give_data(data);
    return;
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (offset + i <= kCommand) write_register(offset + static_cast<unsigned>(i), data[i]);
  }
}

void Channel::read_data(std::span<uint8_t> data, std::size_t width) {
  if (width == 1) {
    for (std::size_t i = 0; i < data.size(); ++i) read_command_block(kData, data.subspan(i, 1));
    return;
  }
  read_command_block(kData, data);
}

void Channel::write_data(std::span<const uint8_t> data, std::size_t width) {
  if (width == 1) {
    for (std::size_t i = 0; i < data.size(); ++i) write_command_block(kData, data.subspan(i, 1));
    return;
  }
  write_command_block(kData, data);
}

// The data register is 16 bits wide: a single byte moves a word, of which only the lower half arrives. A
// repeated access that outlasts its block finds DRQ clear, as on the bus.
std::size_t Channel::take_data(std::span<uint8_t> data) {
  if (phase_ != Phase::DataIn) return 0;
  const std::size_t left = block_ - cursor_;
  const std::size_t moved = std::min(left, data.size());
  std::memcpy(data.data(), data_.data() + cursor_, moved);
  cursor_ += static_cast<uint32_t>((moved + 1) & ~std::size_t{1});
  if (cursor_ >= block_) end_pio_block(*selected());
  return moved;
}

std::size_t Channel::give_data(std::span<const uint8_t> data) {
  if (phase_ != Phase::DataOut && phase_ != Phase::Packet) return 0;
  const std::size_t left = block_ - cursor_;
  const std::size_t moved = std::min(left, data.size());
  std::memcpy(data_.data() + cursor_, data.data(), moved);
  if (moved & 1) data_[cursor_ + moved] = 0;
  cursor_ += static_cast<uint32_t>((moved + 1) & ~std::size_t{1});
  if (cursor_ >= block_) end_pio_block(*selected());
  return moved;
}

uint8_t Channel::read_control() {
  std::lock_guard lock(mutex_);
  return decoded_ ? status() : 0xff;
}

void Channel::write_control(uint8_t value) {
  std::lock_guard lock(mutex_);
  if (!decoded_) return;
  const bool srst = value & kControlSrst;
  const bool was_srst = control_ & kControlSrst;
  control_ = value & (kControlNien | kControlSrst | kControlHob);
  if (srst && !was_srst && !empty()) {
    for (unsigned unit = 0; unit < 2; ++unit) {
      if (!drives_[unit]) continue;
      revert_[unit] |= drives_[unit]->revert_on_soft_reset && !drives_[unit]->is_packet();
      drives_[unit]->soft_reset();
    }
    begin_reset();
  }
  advance_reset();
  update_line();
}

void Channel::read_bus_master(unsigned offset, std::span<uint8_t> data) {
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = bus_master_.read(offset + static_cast<unsigned>(i));
  }
}

void Channel::write_bus_master(unsigned offset, std::span<const uint8_t> data) {
  std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < data.size(); ++i) {
    const unsigned at = offset + static_cast<unsigned>(i);
    if (at != kBmCommand) {
      bus_master_.write(at, data[i]);
      continue;
    }
    bus_master_.write_command(data[i]);
    try_dma();
  }
}

void Channel::set_controller(bool decoded, bool bus_master) {
  std::lock_guard lock(mutex_);
  decoded_ = decoded;
  may_master_ = bus_master;
  try_dma();
}

// ---- interrupts ----

void Channel::raise_interrupt(Drive& drive) {
  drive.interrupt_pending = true;
  update_line();
}

void Channel::update_line() {
  const Drive* drive = selected();
  const bool level = drive && drive->interrupt_pending && !(control_ & kControlNien);
  if (level == line_level_) return;
  line_level_ = level;
  if (level) bus_master_.interrupt();
  line_.set_level(level);
}

}  // namespace spindle::ide
