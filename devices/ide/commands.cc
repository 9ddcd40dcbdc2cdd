#include "devices/ide/commands.h"

#include <algorithm>
#include <array>
#include <bit>

#include "devices/ide/drive.h"
#include "devices/ide/identify.h"
#include "devices/ide/media.h"
#include "devices/ide/smart.h"
#include "devices/ide/trim.h"

namespace spindle::ide {
namespace {

using Parsed = std::expected<Request, Outcome>;

std::unexpected<Outcome> refused(uint8_t error) {
  return std::unexpected(Outcome::failed(error));
}

Parsed parse_plain(const Drive&, const Command& command, const TaskFile& registers) {
  return plain_request(command, registers);
}

Parsed parse_abort(const Drive&, const Command&, const TaskFile&) {
  return refused(kAbrt);
}

// Everything with an address and a count of sectors.
Parsed parse_media(const Drive& drive, const Command& command, const TaskFile& registers) {
  Request request = plain_request(command, registers);
  if (command.multiple) {
    if (drive.settings.multiple == 0) return refused(kAbrt);
    request.block_bytes = drive.settings.multiple * kSectorBytes;
  }
  if (command.writes && drive.disk().read_only()) return refused(kWp | kAbrt);
  uint32_t sectors;
  if (command.ext) {
    sectors = registers.count.both() == 0 ? 65536 : registers.count.both();
    request.lba = registers.lba48();
  } else {
    sectors = registers.count.current == 0 ? 256 : registers.count.current;
    if (registers.lba_addressing()) {
      request.lba = registers.lba28();
    } else if (const auto lba = drive.lba_of_chs(registers)) {
      request.lba = *lba;
    } else {
      return refused(kIdnf);
    }
  }
  // Nothing of a request that reaches past the end is done; the registers name the first sector beyond it.
  const uint64_t end = drive.addressable(command, registers);
  if (request.lba >= end || sectors > end - request.lba) {
    return std::unexpected(Outcome{.error = kIdnf, .lba = std::max(request.lba, end)});
  }
  request.bytes = uint64_t{sectors} << kSectorShift;
  return request;
}

bool is_transfer_mode(uint8_t mode) {
  if (mode == kModePioDefault || mode == kModePioNoIordy) return true;
  const unsigned number = mode & 7;
  switch (mode & 0xf8) {
    case kModePio:
      return number <= kHighestPio;
    case kModeMultiwordDma:
      return number <= kHighestMultiwordDma;
    case kModeUltraDma:
      return number <= kHighestUltraDma;
  }
  return false;
}

Outcome accept_transfer_mode(Drive& drive, const Request& request, std::span<uint8_t>) {
  drive.transfer_mode = request.registers.count.current;
  return {};
}
Outcome accept_look_ahead(Drive& drive, const Request& request, std::span<uint8_t>) {
  drive.settings.look_ahead = request.registers.features.current == kFeatureEnableLookAhead;
  return {};
}
Outcome accept_revert(Drive& drive, const Request& request, std::span<uint8_t>) {
  drive.revert_on_soft_reset = request.registers.features.current == kFeatureEnableRevert;
  return {};
}

Parsed parse_set_features(const Drive&, const Command& command, const TaskFile& registers) {
  Request request = plain_request(command, registers);
  switch (registers.features.current) {
    case kFeatureEnableWriteCache:
      request.work = enable_write_cache;
      return request;
    case kFeatureDisableWriteCache:
      request.work = disable_write_cache;
      return request;
    case kFeatureSetTransferMode:
      if (!is_transfer_mode(registers.count.current)) return refused(kAbrt);
      request.accept = accept_transfer_mode;
      return request;
    case kFeatureEnableLookAhead:
    case kFeatureDisableLookAhead:
      request.accept = accept_look_ahead;
      return request;
    case kFeatureEnableRevert:
    case kFeatureDisableRevert:
      request.accept = accept_revert;
      return request;
  }
  return refused(kAbrt);
}

// What there is to choose of a packet device: it has no cache to write, and nothing to look ahead to.
Parsed parse_packet_set_features(const Drive& drive, const Command& command, const TaskFile& registers) {
  switch (registers.features.current) {
    case kFeatureSetTransferMode:
    case kFeatureEnableRevert:
    case kFeatureDisableRevert:
      return parse_set_features(drive, command, registers);
  }
  return refused(kAbrt);
}

// Overlapped commands are not there (word 49 bit 13).
Parsed parse_packet(const Drive&, const Command& command, const TaskFile& registers) {
  if (registers.features.current & kPacketOverlap) return refused(kAbrt);
  return plain_request(command, registers);
}

// What hosts try on a device before they know its kind: the abort comes with the signature (ATA/ATAPI-6,
// 8.15, 8.27).
Outcome accept_other_kind(Drive& drive, const Request&, std::span<uint8_t>) {
  drive.put_signature();
  return Outcome::failed(kAbrt);
}

Parsed parse_set_multiple(const Drive&, const Command& command, const TaskFile& registers) {
  const uint8_t count = registers.count.current;
  if (count > kMaxMultiple || (count != 0 && !std::has_single_bit(count))) return refused(kAbrt);
  return plain_request(command, registers);
}
Outcome accept_set_multiple(Drive& drive, const Request& request, std::span<uint8_t>) {
  drive.settings.multiple = request.registers.count.current;
  return {};
}

// Any translation will do that has sectors in a track (ATA/ATAPI-5, 8.16).
Parsed parse_device_parameters(const Drive&, const Command& command, const TaskFile& registers) {
  if (registers.count.current == 0) return refused(kAbrt);
  return plain_request(command, registers);
}
Outcome accept_device_parameters(Drive& drive, const Request& request, std::span<uint8_t>) {
  drive.settings.sectors_per_track = request.registers.count.current;
  drive.settings.heads = static_cast<uint8_t>((request.registers.device & kDeviceHead) + 1);
  return {};
}

// READ NATIVE MAX ADDRESS belongs to the Host Protected Area feature set of ATA8-ACS, which is not there
// (word 82 bit 10), so SET MAX ADDRESS aborts. Firmware and hdparm ask all the same, and since nothing can be
// protected the answer is plain: the last sector, in the way the question was put.
Parsed parse_native_max(const Drive& drive, const Command& command, const TaskFile& registers) {
  Request request = plain_request(command, registers);
  const uint64_t end = drive.addressable(command, registers);
  if (end == 0) return refused(kAbrt);
  request.lba = end - 1;
  return request;
}
Outcome accept_native_max(Drive& drive, const Request& request, std::span<uint8_t>) {
  drive.show_address(request, request.lba);
  return {};
}

Outcome accept_identify(Drive& drive, const Request&, std::span<uint8_t> block) {
  identify_device(drive, block);
  return {};
}

Outcome accept_identify_packet(Drive& drive, const Request&, std::span<uint8_t> block) {
  identify_packet_device(drive, block);
  return {};
}

Outcome accept_check_power(Drive& drive, const Request&, std::span<uint8_t>) {
  switch (drive.power) {
    case Drive::Power::Active:
      return {.count = kPowerActive};
    case Drive::Power::Idle:
      return {.count = kPowerIdle};
    case Drive::Power::Standby:
    case Drive::Power::Sleep:
      break;
  }
  return {.count = kPowerStandby};
}

template <Drive::Power power>
Outcome accept_power(Drive& drive, const Request&, std::span<uint8_t>) {
  drive.power = power;
  return {};
}
constexpr auto accept_active = accept_power<Drive::Power::Active>;
constexpr auto accept_idle = accept_power<Drive::Power::Idle>;
constexpr auto accept_standby = accept_power<Drive::Power::Standby>;
constexpr auto accept_sleep = accept_power<Drive::Power::Sleep>;

// ---- the rows ----

constexpr Command read(uint8_t opcode, const char* name, Protocol protocol, bool ext, bool multiple = false) {
  return {.opcode = opcode,
          .name = name,
          .protocol = protocol,
          .parse = parse_media,
          .accept = accept_active,
          .work = read_media,
          .ext = ext,
          .multiple = multiple};
}
constexpr Command write(uint8_t opcode, const char* name, Protocol protocol, bool ext, bool multiple = false,
                        bool fua = false) {
  return {.opcode = opcode,
          .name = name,
          .protocol = protocol,
          .parse = parse_media,
          .accept = accept_active,
          .work = write_media,
          .ext = ext,
          .multiple = multiple,
          .fua = fua,
          .writes = true};
}
constexpr Command verify(uint8_t opcode, const char* name, bool ext) {
  return {.opcode = opcode,
          .name = name,
          .parse = parse_media,
          .accept = accept_active,
          .work = verify_media,
          .ext = ext};
}
constexpr Command plain(uint8_t opcode, const char* name, Command::Accept accept,
                        Command::Work work = nullptr) {
  return {.opcode = opcode, .name = name, .parse = parse_plain, .accept = accept, .work = work};
}

constexpr Command kCommands[] = {
    // NOP ends in ABRT by definition (ATA/ATAPI-6, 8.26): it is there for hosts to see that it does.
    {.opcode = 0x00, .name = "NOP", .parse = parse_abort},

    read(0x20, "READ SECTORS", Protocol::PioIn, false),
    read(0x21, "READ SECTORS without retry", Protocol::PioIn, false),
    read(0x24, "READ SECTORS EXT", Protocol::PioIn, true),
    read(0xc4, "READ MULTIPLE", Protocol::PioIn, false, true),
    read(0x29, "READ MULTIPLE EXT", Protocol::PioIn, true, true),
    read(0xc8, "READ DMA", Protocol::DmaIn, false),
    read(0xc9, "READ DMA without retry", Protocol::DmaIn, false),
    read(0x25, "READ DMA EXT", Protocol::DmaIn, true),

    write(0x30, "WRITE SECTORS", Protocol::PioOut, false),
    write(0x31, "WRITE SECTORS without retry", Protocol::PioOut, false),
    write(0x34, "WRITE SECTORS EXT", Protocol::PioOut, true),
    write(0xc5, "WRITE MULTIPLE", Protocol::PioOut, false, true),
    write(0x39, "WRITE MULTIPLE EXT", Protocol::PioOut, true, true),
    write(0xce, "WRITE MULTIPLE FUA EXT", Protocol::PioOut, true, true, true),
    write(0xca, "WRITE DMA", Protocol::DmaOut, false),
    write(0xcb, "WRITE DMA without retry", Protocol::DmaOut, false),
    write(0x35, "WRITE DMA EXT", Protocol::DmaOut, true),
    write(0x3d, "WRITE DMA FUA EXT", Protocol::DmaOut, true, false, true),

    {.opcode = 0x06,
     .name = "DATA SET MANAGEMENT",
     .protocol = Protocol::DmaOut,
     .parse = parse_trim,
     .accept = accept_active,
     .work = trim_media,
     .ext = true,
     .writes = true},

    verify(0x40, "READ VERIFY SECTORS", false),
    verify(0x41, "READ VERIFY SECTORS without retry", false),
    verify(0x42, "READ VERIFY SECTORS EXT", true),

    plain(0xe7, "FLUSH CACHE", nullptr, flush_media),
    plain(0xea, "FLUSH CACHE EXT", nullptr, flush_media),

    {.opcode = 0xef, .name = "SET FEATURES", .parse = parse_set_features},
    {.opcode = 0xc6, .name = "SET MULTIPLE MODE", .parse = parse_set_multiple, .accept = accept_set_multiple},
    {.opcode = 0x91,
     .name = "INITIALIZE DEVICE PARAMETERS",
     .parse = parse_device_parameters,
     .accept = accept_device_parameters},
    {.opcode = 0xf8,
     .name = "READ NATIVE MAX ADDRESS",
     .parse = parse_native_max,
     .accept = accept_native_max},
    {.opcode = 0x27,
     .name = "READ NATIVE MAX ADDRESS EXT",
     .parse = parse_native_max,
     .accept = accept_native_max,
     .ext = true},
    {.opcode = kSmart, .name = "SMART", .parse = parse_smart},
    {.opcode = kExecuteDeviceDiagnostic,
     .name = "EXECUTE DEVICE DIAGNOSTIC",
     .protocol = Protocol::Diagnostic,
     .parse = parse_plain},
    {.opcode = 0xec,
     .name = "IDENTIFY DEVICE",
     .protocol = Protocol::PioIn,
     .parse = parse_plain,
     .accept = accept_identify},

    // Power management, with the opcodes of ATA-2 and those of before. A drive that spins down writes its
    // cache out first, so these flush. Standby timers are accepted and never run out: nothing spins.
    plain(0xe0, "STANDBY IMMEDIATE", accept_standby, flush_media),
    plain(0x94, "STANDBY IMMEDIATE", accept_standby, flush_media),
    plain(0xe1, "IDLE IMMEDIATE", accept_idle),
    plain(0x95, "IDLE IMMEDIATE", accept_idle),
    plain(0xe2, "STANDBY", accept_standby, flush_media),
    plain(0x96, "STANDBY", accept_standby, flush_media),
    plain(0xe3, "IDLE", accept_idle),
    plain(0x97, "IDLE", accept_idle),
    plain(0xe5, "CHECK POWER MODE", accept_check_power),
    plain(0x98, "CHECK POWER MODE", accept_check_power),
    plain(0xe6, "SLEEP", accept_sleep, flush_media),
    plain(0x99, "SLEEP", accept_sleep, flush_media),
};

// A packet device has few commands of its own: the drive's work is done by PACKET. DEVICE RESET is the
// channel's business, since it is heard even by a busy device.
constexpr Command kPacketDeviceCommands[] = {
    {.opcode = 0x00, .name = "NOP", .parse = parse_abort},
    {.opcode = 0xa0, .name = "PACKET", .protocol = Protocol::Packet, .parse = parse_packet},
    {.opcode = 0xa1,
     .name = "IDENTIFY PACKET DEVICE",
     .protocol = Protocol::PioIn,
     .parse = parse_plain,
     .accept = accept_identify_packet},
    plain(0xec, "IDENTIFY DEVICE", accept_other_kind),
    plain(0x20, "READ SECTORS", accept_other_kind),
    {.opcode = 0xef, .name = "SET FEATURES", .parse = parse_packet_set_features},
    {.opcode = kExecuteDeviceDiagnostic,
     .name = "EXECUTE DEVICE DIAGNOSTIC",
     .protocol = Protocol::Diagnostic,
     .parse = parse_plain},
    plain(0xe0, "STANDBY IMMEDIATE", accept_standby),
    plain(0xe1, "IDLE IMMEDIATE", accept_idle),
    plain(0xe5, "CHECK POWER MODE", accept_check_power),
    plain(0xe6, "SLEEP", accept_sleep),
};

constexpr std::array<const Command*, 256> index_by_opcode() {
  std::array<const Command*, 256> index{};
  for (const Command& command : kCommands) index[command.opcode] = &command;
  return index;
}
constexpr auto kByOpcode = index_by_opcode();

}  // namespace

const Command* find_ata_command(uint8_t opcode) {
  return kByOpcode[opcode];
}

const Command* find_packet_device_command(uint8_t opcode) {
  const auto* found = std::ranges::find(kPacketDeviceCommands, opcode, &Command::opcode);
  return found == std::end(kPacketDeviceCommands) ? nullptr : found;
}

std::span<const Command> ata_commands() {
  return kCommands;
}

}  // namespace spindle::ide
