#include "tools/persona.h"

#include <fmt/format.h>

namespace spindle::tools {
namespace {

constexpr std::string_view kQemuRelease = "7.2.0";  // whose tools are followed

Persona current = Persona::Spindle;

}  // namespace

Persona persona_of(std::string_view program) {
  if (const auto slash = program.rfind('/'); slash != program.npos) program.remove_prefix(slash + 1);
  if (program == "qemu-img") return Persona::QemuImg;
  if (program == "qemu-io") return Persona::QemuIo;
  return Persona::Spindle;
}

void set_persona(Persona persona) {
  current = persona;
}

Persona persona() {
  return current;
}

std::string message_prefix(std::string_view command) {
  switch (current) {
    case Persona::QemuImg:
      return "qemu-img";
    case Persona::QemuIo:
      return "qemu-io";
    case Persona::Spindle:
      break;
  }
  return fmt::format("spindle {}", command);
}

std::string version_text(Persona persona) {
  if (persona == Persona::Spindle) return "spindle " SPINDLE_VERSION;
  return fmt::format("{} version {} (Spindle " SPINDLE_VERSION ")",
                     persona == Persona::QemuImg ? "qemu-img" : "qemu-io", kQemuRelease);
}

}  // namespace spindle::tools
