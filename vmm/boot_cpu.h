// The state in which the boot processor enters a 64-bit kernel: long mode, flat segments, the first 4 GiB
// mapped one to one, interrupts off, RSI pointing to boot_params (64-bit boot protocol of Linux). The other
// processors wait for the kernel's INIT and STARTUP messages, which the APICs in the kernel handle.
//
// Also the CPUID tables: what KVM offers, with each processor's identity, the number of processors, and
// without virtualisation (guests of the guest are not supported) and what the host at hand gets wrong.
#pragma once

#include <linux/kvm.h>

#include <cstdint>
#include <vector>

#include "block/result.h"
#include "vmm/kvm.h"
#include "vmm/memory.h"

namespace spindle::vmm {

/// Writes GDT and page tables into guest memory and sets the registers.
Result<> enter_long_mode(KvmCpu& cpu, const GuestRam& ram, uint64_t entry);

/// True if this host's processor is QEMU's TCG emulation (guest-tests/with-kvm), as its CPUID says.
bool host_is_tcg();

struct CpuidOptions {
  unsigned cpu = 0;
  unsigned cpus = 1;
  bool tsc_deadline = false;  ///< KVM has it; its table does not say so
  bool hide_xsave = false;    ///< for TCG, which does not intercept XSETBV in a nested guest
};

/// The table of one processor, made from what KVM supports.
std::vector<kvm_cpuid_entry2> make_cpuid(std::vector<kvm_cpuid_entry2> supported,
                                         const CpuidOptions& options);

/// Number of guest-physical address bits that the table promises.
unsigned physical_address_bits(const std::vector<kvm_cpuid_entry2>& entries);

}  // namespace spindle::vmm
