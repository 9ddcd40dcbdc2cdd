// Puts a Linux kernel, its initrd and its command line into guest memory, by the Linux/x86 64-bit boot
// protocol (Documentation/arch/x86/boot.rst of the kernel): ELF vmlinux, loaded by its program headers, or
// bzImage with the 64-bit entry point. The boot CPU then starts at Loaded::entry in long mode (boot_cpu.h)
// with the address of boot_params in RSI.
//
// Everything in these files is data from an enemy: each field is checked against the file's size and the
// guest's memory before it is used, with overflow in mind, and nothing is allocated by what a field says.
#pragma once

#include <asm/bootparam.h>

#include <cstdint>
#include <string>

#include "block/result.h"
#include "vmm/boot_file.h"
#include "vmm/memory.h"

namespace spindle::vmm {

/// A kernel in guest memory.
struct LoadedKernel {
  uint64_t entry = 0;  ///< guest-physical address of the 64-bit entry point
  uint64_t start = 0;  ///< [start, end): what the kernel needs until it has set itself up
  uint64_t end = 0;
  uint64_t initrd_limit = 0;      ///< the initrd must end at or below this
  uint64_t command_line_max = 0;  ///< bytes without the terminating NUL
  setup_header header{};          ///< to be completed and put into boot_params
};

/// Loads `kernel` into low RAM. Recognises ELF by its magic number, all else must be a bzImage.
Result<LoadedKernel> load_kernel(const BootFile& kernel, const GuestRam& ram);

/// Where an initrd of `size` bytes goes: as high as it may, page aligned, clear of the kernel.
Result<uint64_t> place_initrd(const LoadedKernel& kernel, const GuestRam& ram, const BootFile& initrd);

struct BootImages {
  const BootFile* kernel = nullptr;
  const BootFile* initrd = nullptr;  ///< may be null
  std::string command_line;
  uint64_t rsdp_address = 0;
};

/// Does it all: kernel, initrd, command line, boot_params. Returns the entry point. May be called again after
/// the machine ran (reset); it depends on nothing that is in guest memory.
Result<uint64_t> load_linux(const BootImages& images, const GuestRam& ram);

}  // namespace spindle::vmm
