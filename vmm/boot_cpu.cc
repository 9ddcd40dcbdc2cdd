#include "vmm/boot_cpu.h"

#include <cpuid.h>

#include <bit>
#include <cstring>

#include "vmm/layout.h"

namespace spindle::vmm {
namespace {

// Control registers and page table bits (Intel SDM volume 3, 2.5 and 4.5).
constexpr uint64_t kCr0ProtectedMode = 1u << 0;
constexpr uint64_t kCr0ExtensionType = 1u << 4;
constexpr uint64_t kCr0Paging = 1u << 31;
constexpr uint64_t kCr4PhysicalAddressExtension = 1u << 5;
constexpr uint64_t kEferLongModeEnable = 1u << 8;
constexpr uint64_t kEferLongModeActive = 1u << 10;
constexpr uint64_t kPagePresentWritable = 0x3;
constexpr uint64_t kPageLarge = 0x80;
constexpr uint64_t kPageSize = 4096;
constexpr uint64_t kLargePageSize = 2 * kMiB;
constexpr unsigned kDirectories = 4;

// The selectors that the boot protocol asks for: __BOOT_CS 10h, __BOOT_DS 18h. KVM wants a task segment too.
constexpr uint64_t kGdt[] = {
    0,
    0,
    0x00af9b000000ffff,  // 10h: code, 64 bit
    0x00cf93000000ffff,  // 18h: data
    0x008f8b000000ffff,  // 20h: task state, busy
};
constexpr uint16_t kCodeSelector = 0x10, kDataSelector = 0x18, kTaskSelector = 0x20;

kvm_segment segment(uint16_t selector) {
  const uint64_t descriptor = kGdt[selector / 8];
  kvm_segment result{};
  result.selector = selector;
  result.limit = 0xffffffff;
  result.type = (descriptor >> 40) & 0xf;
  result.s = (descriptor >> 44) & 1;
  result.dpl = (descriptor >> 45) & 3;
  result.present = (descriptor >> 47) & 1;
  result.l = (descriptor >> 53) & 1;
  result.db = (descriptor >> 54) & 1;
  result.g = (descriptor >> 55) & 1;
  return result;
}

void write_page_tables(const GuestMemory& memory) {
  const uint64_t pointers = kPageTablesAddress + kPageSize;
  const uint64_t directories = pointers + kPageSize;
  std::memset(memory.at(kPageTablesAddress, (2 + kDirectories) * kPageSize), 0,
              (2 + kDirectories) * kPageSize);
  memory.write_object(kPageTablesAddress, pointers | kPagePresentWritable);
  for (uint64_t i = 0; i < kDirectories; ++i) {
    memory.write_object(pointers + 8 * i, (directories + i * kPageSize) | kPagePresentWritable);
  }
  for (uint64_t i = 0; i < kDirectories * 512; ++i) {
    memory.write_object(directories + 8 * i, (i * kLargePageSize) | kPagePresentWritable | kPageLarge);
  }
}

// CPUID bits by leaf.
constexpr uint32_t kLeaf1EcxVmx = 1u << 5;
constexpr uint32_t kLeaf1EcxTscDeadline = 1u << 24;
constexpr uint32_t kLeaf1EcxXsave = 1u << 26;
constexpr uint32_t kLeaf1EcxOsxsave = 1u << 27;
constexpr uint32_t kLeaf1EcxHypervisor = 1u << 31;
constexpr uint32_t kLeaf1EcxNeedXsave = 1u << 12 /*FMA*/ | 1u << 28 /*AVX*/ | 1u << 29 /*F16C*/;
constexpr uint32_t kLeaf1EdxMultiThreading = 1u << 28;
// AVX2, MPX, AVX-512 (F DQ IFMA PF ER CD BW VL); AVX-512 VBMI, PKU, OSPKE, VBMI2, VAES, VPCLMULQDQ, VNNI,
// BITALG, VPOPCNTDQ; AVX-512 4VNNIW, 4FMAPS, VP2INTERSECT, FP16, AMX.
constexpr uint32_t kLeaf7EbxNeedXsave = 1u << 5 | 1u << 14 | 1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 |
                                        1u << 27 | 1u << 28 | 1u << 30 | 1u << 31;
constexpr uint32_t kLeaf7EcxNeedXsave =
    1u << 1 | 1u << 3 | 1u << 4 | 1u << 6 | 1u << 9 | 1u << 10 | 1u << 11 | 1u << 12 | 1u << 14;
constexpr uint32_t kLeaf7EdxNeedXsave =
    1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25;
constexpr uint32_t kExtendedEcxSvm = 1u << 2;
constexpr uint32_t kExtendedEcxNeedXsave = 1u << 11 /*XOP*/ | 1u << 16 /*FMA4*/;
constexpr uint32_t kLeafXsave = 0xd;

void set_identity(kvm_cpuid_entry2& entry, const CpuidOptions& options) {
  const unsigned id_bits = std::bit_width(options.cpus - 1);  // bits of an APIC ID that name the core
  switch (entry.function) {
    case 1:
      entry.ebx = (entry.ebx & 0xffff) | options.cpus << 16 | options.cpu << 24;
      if (options.cpus > 1) {
        entry.edx |= kLeaf1EdxMultiThreading;
      } else {
        entry.edx &= ~kLeaf1EdxMultiThreading;
      }
      entry.ecx |= kLeaf1EcxHypervisor;
      if (options.tsc_deadline) entry.ecx |= kLeaf1EcxTscDeadline;
      break;
    case 4:  // one package, a core a processor, no cache shared between them
      entry.eax = (entry.eax & 0x3fff) | (options.cpus - 1) << 26;
      break;
    case 0xb:
    case 0x1f:
      entry.edx = options.cpu;
      entry.ecx = (entry.index & 0xff);
      if (entry.index == 0) {
        entry.eax = 0, entry.ebx = 1, entry.ecx |= 1u << 8;  // level type 1: threads
      } else if (entry.index == 1) {
        entry.eax = id_bits, entry.ebx = options.cpus, entry.ecx |= 2u << 8;  // level type 2: cores
      } else {
        entry.eax = entry.ebx = 0;
      }
      break;
    case 0x80000008:
      entry.ecx = (entry.ecx & ~0xf0ffu) | (options.cpus - 1) | id_bits << 12;
      break;
    case 0x8000001e:
      entry.eax = options.cpu;
      entry.ebx = options.cpu;
      entry.ecx = 0;
      break;
    default:
      break;
  }
}

// A machine reset cannot take a processor out of a guest of its own (KVM refuses to set its state then).
void hide_virtualisation(kvm_cpuid_entry2& entry) {
  switch (entry.function) {
    case 1:
      entry.ecx &= ~kLeaf1EcxVmx;
      break;
    case 0x80000001:
      entry.ecx &= ~kExtendedEcxSvm;
      break;
    case 0x8000000a:  // SVM's features
      entry.eax = entry.ebx = entry.ecx = entry.edx = 0;
      break;
    default:
      break;
  }
}

void hide_xsave(kvm_cpuid_entry2& entry) {
  switch (entry.function) {
    case 1:
      entry.ecx &= ~(kLeaf1EcxXsave | kLeaf1EcxOsxsave | kLeaf1EcxNeedXsave);
      break;
    case 7:
      if (entry.index == 0) {
        entry.ebx &= ~kLeaf7EbxNeedXsave;
        entry.ecx &= ~kLeaf7EcxNeedXsave;
        entry.edx &= ~kLeaf7EdxNeedXsave;
      } else {
        entry.eax = entry.ebx = entry.ecx = entry.edx = 0;  // AVX-VNNI, AVX-512 BF16 and their like
      }
      break;
    case kLeafXsave:
      entry.eax = entry.ebx = entry.ecx = entry.edx = 0;
      break;
    case 0x80000001:
      entry.ecx &= ~kExtendedEcxNeedXsave;
      break;
    default:
      break;
  }
}

}  // namespace

Result<> enter_long_mode(KvmCpu& cpu, const GuestRam& ram, uint64_t entry) {
  const GuestMemory& memory = ram.memory();
  for (size_t i = 0; i < std::size(kGdt); ++i) memory.write_object(kGdtAddress + 8 * i, kGdt[i]);
  write_page_tables(memory);

  auto sregs = cpu.sregs();
  if (!sregs) return std::unexpected(sregs.error());
  sregs->cs = segment(kCodeSelector);
  sregs->ds = sregs->es = sregs->fs = sregs->gs = sregs->ss = segment(kDataSelector);
  sregs->tr = segment(kTaskSelector);
  sregs->gdt.base = kGdtAddress;
  sregs->gdt.limit = sizeof kGdt - 1;
  sregs->idt.base = 0;
  sregs->idt.limit = 0;
  sregs->cr0 = kCr0ProtectedMode | kCr0ExtensionType | kCr0Paging;
  sregs->cr3 = kPageTablesAddress;
  sregs->cr4 = kCr4PhysicalAddressExtension;
  sregs->efer = kEferLongModeEnable | kEferLongModeActive;
  SPINDLE_TRY(cpu.set_sregs(*sregs));

  kvm_regs regs{};
  regs.rip = entry;
  regs.rsi = kBootParamsAddress;
  regs.rsp = kBootStackTop;
  regs.rflags = 2;  // the bit that is always one
  return cpu.set_regs(regs);
}

bool host_is_tcg() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & kLeaf1EcxHypervisor)) return false;
  char signature[12];
  __cpuid(0x40000000, eax, ebx, ecx, edx);
  std::memcpy(signature, &ebx, 4);
  std::memcpy(signature + 4, &ecx, 4);
  std::memcpy(signature + 8, &edx, 4);
  return std::memcmp(signature, "TCGTCGTCGTCG", sizeof signature) == 0;
}

std::vector<kvm_cpuid_entry2> make_cpuid(std::vector<kvm_cpuid_entry2> entries, const CpuidOptions& options) {
  for (kvm_cpuid_entry2& entry : entries) {
    set_identity(entry, options);
    hide_virtualisation(entry);
    if (options.hide_xsave) hide_xsave(entry);
  }
  return entries;
}

unsigned physical_address_bits(const std::vector<kvm_cpuid_entry2>& entries) {
  for (const kvm_cpuid_entry2& entry : entries) {
    if (entry.function == 0x80000008) return entry.eax & 0xff;
  }
  return 36;  // what every processor with PAE has
}

}  // namespace spindle::vmm
