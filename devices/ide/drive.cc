#include "devices/ide/drive.h"

#include <fmt/format.h>

#include <algorithm>

#include "devices/ide/commands.h"

namespace spindle::ide {

namespace {

Result<> check_string(const char* what, const std::string& text, std::size_t limit) {
  if (text.size() > limit) {
    return std::unexpected(
        Error::invalid("attach", what, fmt::format("at most {} characters fit, not {}", limit, text.size())));
  }
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
  if (!printable) return std::unexpected(Error::invalid("attach", what, "must be printable ASCII"));
  return {};
}

}  // namespace

Result<> check(const DriveOptions& options) {
  SPINDLE_TRY(check_string("serial", options.serial, 20));
  SPINDLE_TRY(check_string("model", options.model, 40));
  SPINDLE_TRY(check_string("firmware", options.firmware, 8));
  return {};
}

Drive::Drive(std::shared_ptr<Disk> disk, DriveOptions options, unsigned unit)
    : disk_(std::move(disk)), options_(std::move(options)), unit_(unit) {
  power_on();
  show_signature();
}

Drive::Drive(std::unique_ptr<Cdrom> cdrom, DriveOptions options, unsigned unit)
    : cdrom_(std::move(cdrom)), options_(std::move(options)), unit_(unit) {
  power_on();
  show_signature();
}

uint64_t Drive::sectors() const {
  return std::min(disk_->size() >> kSectorShift, kMaxLba48Sectors);
}

Geometry Drive::default_geometry() const {
  return translated(kDefaultHeads, kDefaultSectorsPerTrack);
}

Geometry Drive::geometry() const {
  return translated(settings.heads, settings.sectors_per_track);
}

Geometry Drive::translated(uint32_t heads, uint32_t sectors_per_track) const {
  const uint64_t cylinders = std::min(sectors(), kMaxChsSectors) / (heads * sectors_per_track);
  return {.cylinders = static_cast<uint32_t>(std::min(cylinders, kMaxCylinders)),
          .heads = heads,
          .sectors = sectors_per_track};
}

uint64_t Drive::addressable(const Command& command, const TaskFile& from) const {
  if (command.ext) return sectors();
  return from.lba_addressing() ? std::min(sectors(), kMaxLba28Sectors) : geometry().capacity();
}

std::optional<uint64_t> Drive::lba_of_chs(const TaskFile& from) const {
  const Geometry now = geometry();
  const uint32_t cylinder = static_cast<uint32_t>(from.lba_high.current) << 8 | from.lba_mid.current;
  const uint32_t head = from.device & kDeviceHead;
  const uint32_t sector = from.lba_low.current;
  if (sector == 0 || sector > now.sectors || head >= now.heads || cylinder >= now.cylinders)
    return std::nullopt;
  return (static_cast<uint64_t>(cylinder) * now.heads + head) * now.sectors + sector - 1;
}

void Drive::show_address(const Request& request, uint64_t lba) {
  if (request.command->ext) {
    registers.set_lba48(lba);
  } else if (request.registers.lba_addressing()) {
    registers.set_lba28(lba);
  } else {
    const uint64_t track = lba / settings.sectors_per_track;
    const uint64_t cylinder = track / settings.heads;
    registers.lba_low.current = static_cast<uint8_t>(lba % settings.sectors_per_track + 1);
    registers.lba_mid.current = static_cast<uint8_t>(cylinder);
    registers.lba_high.current = static_cast<uint8_t>(cylinder >> 8);
    registers.device = static_cast<uint8_t>((registers.device & ~kDeviceHead) | (track % settings.heads));
  }
}

void Drive::put_signature() {
  registers = TaskFile{};
  registers.count.current = 1;
  registers.lba_low.current = 1;
  if (!is_packet()) return;
  registers.lba_mid.current = kPacketSignatureMid;
  registers.lba_high.current = kPacketSignatureHigh;
}

void Drive::show_signature() {
  put_signature();
  status = is_packet() ? 0 : kReady;
  error = kDiagnosticPassed;
  interrupt_pending = false;
}

void Drive::power_on() {
  settings = Settings{};
  transfer_mode = kModePio | kHighestPio;
  power = Power::Active;
  smart.powered_on();
  if (is_packet()) cdrom_->power_on();
  revert_on_soft_reset = false;
}

void Drive::soft_reset() {
  if (power == Power::Sleep) power = Power::Standby;  // ATA/ATAPI-6, 6.13: a reset ends Sleep
  if (revert_on_soft_reset) settings = Settings{};
}

const Command* Drive::find(uint8_t opcode) const {
  return is_packet() ? find_packet_device_command(opcode) : find_ata_command(opcode);
}

}  // namespace spindle::ide
