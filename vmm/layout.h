// Where things lie in the guest's physical address space and on its ports and interrupt pins. One page, so
// that the loader, the ACPI tables (acpi.cc and acpi/dsdt.asl, which repeats the numbers it needs) and the
// PCI bus agree.
//
//   0x00000500  GDT                         0xc0000000  PCI memory window (low RAM ends at or below it)
//   0x00007000  boot_params (zero page)     0xfec00000  I/O APIC, in KVM
//   0x00009000  page tables, 6 pages        0xfee00000  local APICs, in KVM
//   0x00020000  command line                0xfffbc000  KVM's own pages (Intel without unrestricted guest)
//   0x000e0000  ACPI tables, up to 1 MiB    0x1_00000000  RAM that did not fit below the window
//   0x00100000  the kernel and up
#pragma once

#include <cstdint>

namespace spindle::vmm {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

inline constexpr uint64_t kGdtAddress = 0x500;
inline constexpr uint64_t kBootParamsAddress = 0x7000;
inline constexpr uint64_t kBootStackTop = 0x8ff0;
inline constexpr uint64_t kPageTablesAddress = 0x9000;  // PML4, PDPT, four page directories
inline constexpr uint64_t kCommandLineAddress = 0x20000;
inline constexpr uint64_t kCommandLineEnd = 0x30000;
inline constexpr uint64_t kLowMemoryEnd = 0x9fc00;  // where a PC keeps its EBDA
inline constexpr uint64_t kAcpiAddress = 0xe0000;
inline constexpr uint64_t kAcpiEnd = 0x100000;
inline constexpr uint64_t kHighMemoryStart = 0x100000;

inline constexpr uint64_t kLowRamLimit = 3 * kGiB;  // RAM beyond this goes above 4 GiB
inline constexpr uint64_t kHighRamStart = 4 * kGiB;
inline constexpr uint64_t kPciMemoryStart = 0xc0000000;
inline constexpr uint64_t kPciMemoryEnd = 0xfec00000;
inline constexpr uint16_t kPciIoStart = 0xc000;
inline constexpr uint32_t kPciIoEnd = 0x10000;
inline constexpr uint64_t kIoApicAddress = 0xfec00000;
inline constexpr uint64_t kLocalApicAddress = 0xfee00000;
inline constexpr uint64_t kKvmIdentityMapAddress = 0xfffbc000;
inline constexpr uint64_t kKvmTssAddress = 0xfffbd000;

// Ports.
inline constexpr uint16_t kPortSerial1 = 0x3f8;
inline constexpr uint16_t kPortRtc = 0x70;
inline constexpr uint16_t kPortI8042Data = 0x60;
inline constexpr uint16_t kPortI8042Command = 0x64;
inline constexpr uint16_t kPortDelay = 0x80;
inline constexpr uint16_t kPortFastReset = 0x92;
inline constexpr uint16_t kPortIdeCommand[] = {0x1f0, 0x170};  // by channel
inline constexpr uint16_t kPortIdeControl[] = {0x3f6, 0x376};
inline constexpr uint16_t kPortPvpanic = 0x505;
inline constexpr uint16_t kPortPm1Event = 0x600;
inline constexpr uint16_t kPortPm1Control = 0x604;
inline constexpr uint16_t kPortPmTimer = 0x608;
inline constexpr uint16_t kPortPciAddress = 0xcf8;
inline constexpr uint16_t kPortResetControl = 0xcf9;
inline constexpr uint16_t kPortPciData = 0xcfc;

// Global system interrupts. 0-15 are the ISA IRQs (IRQ 0 arrives at I/O APIC pin 2, as on every PC).
inline constexpr unsigned kIrqSerial1 = 4;
inline constexpr unsigned kIrqRtc = 8;
inline constexpr unsigned kIrqSci = 9;
inline constexpr unsigned kIrqIde[] = {14, 15};  // by channel
inline constexpr unsigned kGsiPciFirst = 16;     // four pins, shared by all PCI functions
inline constexpr unsigned kGsiPciCount = 4;
inline constexpr unsigned kIoApicPins = 24;
inline constexpr unsigned kGsiMessageFirst = 24;  // message interrupts are numbered from here

inline constexpr unsigned kMaxCpus = 8;
inline constexpr uint8_t kIoApicId = 0;  // its APIC IDs are a space of their own since the xAPIC

}  // namespace spindle::vmm
