// The command tables of an ATA disk and of a packet device: opcode to Command.
#pragma once

#include <cstdint>
#include <span>

#include "devices/ide/request.h"

namespace spindle::ide {

/// The row for `opcode`, or null: such a command is aborted.
const Command* find_ata_command(uint8_t opcode);
std::span<const Command> ata_commands();
/// The same for a packet device.
const Command* find_packet_device_command(uint8_t opcode);

}  // namespace spindle::ide
