// The ACPI tables: RSDP, XSDT, FADT, FACS, MADT and the DSDT.
//
// The DSDT, which is code, is written in ASL and compiled by iasl at build time (acpi/dsdt.asl). The others
// are built here: they hold pointers to each other, which are known when they are placed, and the MADT has an
// entry for each processor, whose number is known when the machine starts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "devices/guest_memory.h"

namespace spindle::vmm {

struct AcpiTables {
  std::vector<uint8_t> bytes;  ///< to be placed at `address`
  uint64_t address = 0;
  uint64_t rsdp_address = 0;
};

/// The tables of a machine with `cpus` processors, to be placed at `address` (16-byte aligned, below 4 GiB).
AcpiTables build_acpi_tables(unsigned cpus, uint64_t address);

/// The compiled DSDT.
std::span<const uint8_t> dsdt();

}  // namespace spindle::vmm
