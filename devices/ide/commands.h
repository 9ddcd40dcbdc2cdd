// The command table of an ATA disk: opcode to Command.
#pragma once

#include <cstdint>
#include <span>

#include "devices/ide/request.h"

namespace spindle::ide {

/// The row for `opcode`, or null: such a command is aborted.
const Command* find_ata_command(uint8_t opcode);
std::span<const Command> ata_commands();

}  // namespace spindle::ide
