// Under which name the program was started: as `spindle`, or through a link named qemu-img or qemu-io, so
// that scripts which call those by name run unchanged.
//
// Set once at the start of main() and only read afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spindle::tools {

enum class Persona : uint8_t { Spindle, QemuImg, QemuIo };

/// By the last part of argv[0]; what is neither qemu-img nor qemu-io is spindle.
Persona persona_of(std::string_view program);

void set_persona(Persona persona);
Persona persona();

/// What messages begin with: "spindle img info", or "qemu-img" as the original has it. `command` is the
/// subcommand: "img info", "io".
std::string message_prefix(std::string_view command);

/// What --version prints under this name. Scripts look for the number of the QEMU release whose behaviour
/// they may expect, so that comes first.
std::string version_text(Persona persona);

}  // namespace spindle::tools
