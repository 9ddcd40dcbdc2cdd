#include "vmm/dsdt.hex"  // made by iasl from acpi/dsdt.asl

#include "vmm/acpi.h"

namespace spindle::vmm {

std::span<const uint8_t> dsdt() {
  return dsdt_aml_code;
}

}  // namespace spindle::vmm
