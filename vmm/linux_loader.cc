#include "vmm/linux_loader.h"

#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "vmm/layout.h"

namespace spindle::vmm {
namespace {

constexpr uint32_t kHeaderMagic = 0x53726448;  // "HdrS"
constexpr uint16_t kBootFlag = 0xaa55;
constexpr unsigned kSetupHeaderOffset = 0x1f1;
constexpr unsigned kSectorSize = 512;
constexpr uint64_t kEntry64Offset = 0x200;
constexpr uint16_t kProtocolWith64BitEntry = 0x020c;  // xloadflags came with 2.12, Linux 3.8
constexpr uint16_t kXloadKernel64 = 1u << 0;
constexpr uint8_t kLoadedHigh = 1u << 0;
constexpr uint8_t kUnknownLoader = 0xff;
constexpr uint32_t kVmlinuxCommandLineMax = 2047;  // COMMAND_LINE_SIZE of x86 without its NUL
constexpr uint64_t kPageSize = 4096;
constexpr unsigned kMaxProgramHeaders = 64;  // vmlinux has five

/// True if [address, address + size) lies in low RAM above the first MiB.
bool fits_low_ram(const GuestRam& ram, uint64_t address, uint64_t size) {
  return address >= kHighMemoryStart && address <= ram.low_size() && size <= ram.low_size() - address;
}

std::unexpected<Error> too_large(const BootFile& file, uint64_t start, uint64_t size, const GuestRam& ram) {
  return file.bad(
      fmt::format("it needs guest memory at {:#x}, {} KiB long, of which there is none; give more "
                  "than {} MiB with --memory, or another kernel",
                  start, size / kKiB, ram.size() / kMiB));
}

Result<LoadedKernel> load_elf(const BootFile& file, const GuestRam& ram, const Elf64_Ehdr& elf) {
  if (elf.e_ident[EI_CLASS] != ELFCLASS64 || elf.e_ident[EI_DATA] != ELFDATA2LSB ||
      elf.e_machine != EM_X86_64) {
    return file.bad("an ELF file, but not for x86-64");
  }
  if (elf.e_type != ET_EXEC) return file.bad("an ELF file, but no vmlinux (it is not of type EXEC)");
  if (elf.e_phentsize != sizeof(Elf64_Phdr) || elf.e_phnum == 0 || elf.e_phnum > kMaxProgramHeaders) {
    return file.bad(
        fmt::format("{} ELF program headers of {} bytes each make no kernel", elf.e_phnum, elf.e_phentsize));
  }
  std::vector<Elf64_Phdr> segments(elf.e_phnum);
  SPINDLE_TRY(file.read(elf.e_phoff,
                        {reinterpret_cast<uint8_t*>(segments.data()), segments.size() * sizeof(Elf64_Phdr)}));
  LoadedKernel kernel;
  kernel.start = UINT64_MAX;
  bool entry_loaded = false;
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_LOAD || segment.p_memsz == 0) continue;
    if (segment.p_filesz > segment.p_memsz)
      return file.bad("an ELF segment is larger in the file than in memory");
    if (!fits_low_ram(ram, segment.p_paddr, segment.p_memsz)) {
      return too_large(file, segment.p_paddr, segment.p_memsz, ram);
    }
    uint8_t* host = ram.memory().at(segment.p_paddr, segment.p_memsz);
    SPINDLE_TRY(file.read(segment.p_offset, {host, segment.p_filesz}));
    std::memset(host + segment.p_filesz, 0, segment.p_memsz - segment.p_filesz);
    kernel.start = std::min(kernel.start, segment.p_paddr);
    kernel.end = std::max(kernel.end, segment.p_paddr + segment.p_memsz);
    entry_loaded |= elf.e_entry - segment.p_paddr < segment.p_memsz;
  }
  if (!entry_loaded)
    return file.bad(fmt::format("its entry point {:#x} lies in none of its segments", elf.e_entry));
  kernel.entry = elf.e_entry;
  kernel.initrd_limit = ram.low_size();
  kernel.command_line_max = kVmlinuxCommandLineMax;
  // No file has filled the header in; these are what the kernel looks at.
  kernel.header.boot_flag = kBootFlag;
  kernel.header.header = kHeaderMagic;
  kernel.header.version = kProtocolWith64BitEntry;
  kernel.header.kernel_alignment = 0x1000000;
  return kernel;
}

Result<LoadedKernel> load_bzimage(const BootFile& file, const GuestRam& ram) {
  // The header ends at 0x202 plus the byte at 0x201 (the target of the short jump over it).
  uint8_t head[kSetupHeaderOffset + sizeof(setup_header)] = {};
  SPINDLE_TRY(file.read(0, {head, std::min<uint64_t>(sizeof head, file.size())}));
  const unsigned header_end = std::min<unsigned>(0x202u + head[0x201], sizeof head);
  LoadedKernel kernel;
  setup_header& header = kernel.header;
  std::memcpy(&header, head + kSetupHeaderOffset, header_end - kSetupHeaderOffset);

  if (header.boot_flag != kBootFlag || header.header != kHeaderMagic) {
    return file.bad("neither a bzImage nor an ELF vmlinux; give the kernel's vmlinuz or vmlinux");
  }
  if (header.version < kProtocolWith64BitEntry || !(header.xloadflags & kXloadKernel64)) {
    return file.bad("this bzImage has no 64-bit entry point; give a 64-bit kernel, Linux 3.8 or later");
  }
  if (!(header.loadflags & kLoadedHigh)) return file.bad("a zImage (loaded low), not a bzImage");
  const uint64_t setup_size = (header.setup_sects == 0 ? 4 : header.setup_sects) * kSectorSize + kSectorSize;
  if (setup_size >= file.size()) return file.bad("the file is truncated: it ends before the kernel proper");
  const uint64_t payload = file.size() - setup_size;
  if (payload < kEntry64Offset)
    return file.bad("the file is truncated: it ends before the 64-bit entry point");
  if (header.syssize * 16ull > payload + 15) {
    return file.bad(
        fmt::format("the file is truncated: its header speaks of {} bytes after the setup code, {} are there",
                    header.syssize * 16ull, payload));
  }
  const uint64_t alignment = header.kernel_alignment;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0)
    return file.bad("its kernel_alignment is no power of two");
  if (header.pref_address % alignment != 0)
    return file.bad("its preferred address is not aligned as it demands");

  // init_size: what decompression and start-up use from the load address on; it covers the image itself.
  const uint64_t needed = std::max<uint64_t>(header.init_size, payload);
  kernel.start = header.pref_address;
  if (!fits_low_ram(ram, kernel.start, needed)) return too_large(file, kernel.start, needed, ram);
  kernel.end = kernel.start + needed;
  SPINDLE_TRY(file.read(setup_size, {ram.memory().at(kernel.start, payload), payload}));
  kernel.entry = kernel.start + kEntry64Offset;
  kernel.initrd_limit = std::min<uint64_t>(ram.low_size(), header.initrd_addr_max + 1ull);
  kernel.command_line_max = header.cmdline_size;
  header.code32_start = static_cast<uint32_t>(kernel.start);
  return kernel;
}

}  // namespace

Result<LoadedKernel> load_kernel(const BootFile& file, const GuestRam& ram) {
  Elf64_Ehdr elf{};
  if (file.size() >= sizeof elf) {
    SPINDLE_TRY(file.read(0, {reinterpret_cast<uint8_t*>(&elf), sizeof elf}));
    if (std::memcmp(elf.e_ident, ELFMAG, SELFMAG) == 0) return load_elf(file, ram, elf);
  }
  return load_bzimage(file, ram);
}

Result<uint64_t> place_initrd(const LoadedKernel& kernel, const GuestRam& ram, const BootFile& initrd) {
  const uint64_t limit = std::min(kernel.initrd_limit, ram.low_size()) & ~(kPageSize - 1);
  if (initrd.size() <= limit) {
    const uint64_t address = (limit - initrd.size()) & ~(kPageSize - 1);
    if (address >= kernel.end) return address;
    // A kernel that lies above the initrd's limit leaves the room below itself.
    if (kernel.start > kHighMemoryStart && kernel.start - kHighMemoryStart >= initrd.size()) {
      const uint64_t below = std::min(limit, kernel.start);
      const uint64_t candidate = (below - std::min(below, initrd.size())) & ~(kPageSize - 1);
      if (candidate >= kHighMemoryStart) return candidate;
    }
  }
  return initrd.bad(
      fmt::format("its {} KiB do not fit beside the kernel; give more than {} MiB with --memory",
                  initrd.size() / kKiB, ram.size() / kMiB));
}

Result<uint64_t> load_linux(const BootImages& images, const GuestRam& ram) {
  auto kernel = load_kernel(*images.kernel, ram);
  if (!kernel) return std::unexpected(kernel.error());

  const uint64_t line_max = std::min(kernel->command_line_max, kCommandLineEnd - kCommandLineAddress - 1);
  if (images.command_line.size() > line_max) {
    return std::unexpected(
        Error::invalid("append", "",
                       fmt::format("the command line has {} characters, this kernel takes {}; shorten it",
                                   images.command_line.size(), line_max)));
  }
  std::memcpy(ram.memory().at(kCommandLineAddress, images.command_line.size() + 1),
              images.command_line.c_str(), images.command_line.size() + 1);

  boot_params params{};
  params.hdr = kernel->header;
  params.hdr.type_of_loader = kUnknownLoader;
  params.hdr.cmd_line_ptr = static_cast<uint32_t>(kCommandLineAddress);
  params.acpi_rsdp_addr = images.rsdp_address;
  if (images.initrd) {
    auto address = place_initrd(*kernel, ram, *images.initrd);
    if (!address) return std::unexpected(address.error());
    SPINDLE_TRY(images.initrd->read(
        0, {ram.memory().at(*address, images.initrd->size()), static_cast<size_t>(images.initrd->size())}));
    params.hdr.ramdisk_image = static_cast<uint32_t>(*address);
    params.hdr.ramdisk_size = static_cast<uint32_t>(images.initrd->size());
  }
  for (const MemoryMapEntry& entry : ram.memory_map()) {
    params.e820_table[params.e820_entries++] = {entry.address, entry.size, entry.type};
  }
  ram.memory().write_object(kBootParamsAddress, params);
  return kernel->entry;
}

}  // namespace spindle::vmm
