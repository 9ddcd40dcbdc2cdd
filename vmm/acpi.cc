#include "vmm/acpi.h"

#include <cassert>
#include <cstddef>
#include <cstring>

#include "devices/legacy/acpi_pm.h"
#include "devices/legacy/reset_control.h"
#include "vmm/layout.h"

namespace spindle::vmm {
namespace {

// Layouts from the ACPI specification 6.0, chapter 5.2. All numbers are little endian, as is every host
// KVM-x86 runs on.
#pragma pack(push, 1)
struct TableHeader {
  char signature[4];
  uint32_t length;
  uint8_t revision;
  uint8_t checksum;
  char oem_id[6];
  char oem_table_id[8];
  uint32_t oem_revision;
  char creator_id[4];
  uint32_t creator_revision;
};
static_assert(sizeof(TableHeader) == 36);

struct Rsdp {
  char signature[8];
  uint8_t checksum;  // of the first 20 bytes
  char oem_id[6];
  uint8_t revision;
  uint32_t rsdt_address;
  uint32_t length;
  uint64_t xsdt_address;
  uint8_t extended_checksum;
  uint8_t reserved[3];
};
static_assert(sizeof(Rsdp) == 36);

struct GenericAddress {
  uint8_t space;  // 1: I/O ports
  uint8_t bit_width;
  uint8_t bit_offset;
  uint8_t access_size;  // 1 byte, 2 word, 3 dword
  uint64_t address;
};
static_assert(sizeof(GenericAddress) == 12);

struct Fadt {
  TableHeader header;
  uint32_t firmware_ctrl;
  uint32_t dsdt;
  uint8_t reserved0;
  uint8_t preferred_pm_profile;
  uint16_t sci_int;
  uint32_t smi_cmd;
  uint8_t acpi_enable, acpi_disable, s4bios_req, pstate_cnt;
  uint32_t pm1a_evt_blk, pm1b_evt_blk, pm1a_cnt_blk, pm1b_cnt_blk, pm2_cnt_blk, pm_tmr_blk, gpe0_blk,
      gpe1_blk;
  uint8_t pm1_evt_len, pm1_cnt_len, pm2_cnt_len, pm_tmr_len, gpe0_blk_len, gpe1_blk_len, gpe1_base, cst_cnt;
  uint16_t p_lvl2_lat, p_lvl3_lat, flush_size, flush_stride;
  uint8_t duty_offset, duty_width, day_alrm, mon_alrm, century;
  uint16_t iapc_boot_arch;
  uint8_t reserved1;
  uint32_t flags;
  GenericAddress reset_reg;
  uint8_t reset_value;
  uint16_t arm_boot_arch;
  uint8_t fadt_minor_version;
  uint64_t x_firmware_ctrl, x_dsdt;
  GenericAddress x_pm1a_evt_blk, x_pm1b_evt_blk, x_pm1a_cnt_blk, x_pm1b_cnt_blk, x_pm2_cnt_blk, x_pm_tmr_blk,
      x_gpe0_blk, x_gpe1_blk;
  GenericAddress sleep_control_reg, sleep_status_reg;
  uint64_t hypervisor_vendor_id;
};
static_assert(sizeof(Fadt) == 276);

struct Facs {
  char signature[4];
  uint32_t length;
  uint32_t hardware_signature, firmware_waking_vector, global_lock, flags;
  uint64_t x_firmware_waking_vector;
  uint8_t version;
  uint8_t reserved[31];
};
static_assert(sizeof(Facs) == 64);

struct Madt {
  TableHeader header;
  uint32_t local_apic_address;
  uint32_t flags;
};

struct MadtLocalApic {
  uint8_t type = 0, length = 8;
  uint8_t processor_uid, apic_id;
  uint32_t flags = 1;  // enabled
};

struct MadtIoApic {
  uint8_t type = 1, length = 12;
  uint8_t id, reserved = 0;
  uint32_t address, gsi_base;
};

struct MadtOverride {
  uint8_t type = 2, length = 10;
  uint8_t bus = 0, source;
  uint32_t gsi;
  uint16_t flags;
};

struct MadtLocalNmi {
  uint8_t type = 4, length = 6;
  uint8_t processor_uid = 0xff;  // all
  uint16_t flags = 0;
  uint8_t lint = 1;
};
#pragma pack(pop)

// FADT flags (5.2.9).
constexpr uint32_t kWbinvd = 1u << 0, kProcC1 = 1u << 2, kSleepButtonIsNone = 1u << 5,
                   kNoRtcWakeStatus = 1u << 6, kTimerIs32Bit = 1u << 8, kResetRegister = 1u << 10;
// IAPC_BOOT_ARCH: legacy devices on the ISA bus; no 8042 keyboard, no VGA, no ASPM.
constexpr uint16_t kLegacyDevices = 1u << 0, kNoVga = 1u << 2, kNoAspm = 1u << 4;
constexpr uint32_t kPcatCompatible = 1;  // the MADT's machine has PICs too
constexpr uint16_t kActiveHighLevel = 0x000d;

uint8_t checksum(const void* bytes, size_t size) {
  uint8_t sum = 0;
  for (size_t i = 0; i < size; ++i) sum = static_cast<uint8_t>(sum + static_cast<const uint8_t*>(bytes)[i]);
  return static_cast<uint8_t>(-sum);
}

TableHeader header(const char* signature, uint8_t revision) {
  TableHeader result{};
  std::memcpy(result.signature, signature, 4);
  result.revision = revision;
  std::memcpy(result.oem_id, "SPINDL", 6);
  std::memcpy(result.oem_table_id, "SPINDLE ", 8);
  result.oem_revision = 1;
  std::memcpy(result.creator_id, "SPDL", 4);
  result.creator_revision = 1;
  return result;
}

GenericAddress port(uint16_t number, uint8_t bits) {
  return {.space = 1,
          .bit_width = bits,
          .bit_offset = 0,
          .access_size = static_cast<uint8_t>(bits == 8    ? 1
                                              : bits == 16 ? 2
                                                           : 3),
          .address = number};
}

// Appends tables, each 16-byte aligned, and knows where they will lie.
class Builder {
 public:
  explicit Builder(uint64_t address) : address_(address) {}
  uint64_t append(std::span<const uint8_t> table) {
    bytes_.resize((bytes_.size() + 15) & ~size_t{15});
    const uint64_t at = address_ + bytes_.size();
    bytes_.insert(bytes_.end(), table.begin(), table.end());
    return at;
  }
  /// Sets length and checksum of a table that starts with a TableHeader.
  uint64_t append_table(std::vector<uint8_t> table) {
    const auto length = static_cast<uint32_t>(table.size());
    std::memcpy(table.data() + offsetof(TableHeader, length), &length, sizeof length);
    table[offsetof(TableHeader, checksum)] = 0;
    table[offsetof(TableHeader, checksum)] = checksum(table.data(), table.size());
    return append(table);
  }
  std::vector<uint8_t> take() { return std::move(bytes_); }

 private:
  uint64_t address_;
  std::vector<uint8_t> bytes_;
};

template <typename T>
void add(std::vector<uint8_t>& table, const T& part) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&part);
  table.insert(table.end(), bytes, bytes + sizeof part);
}

std::vector<uint8_t> make_madt(unsigned cpus) {
  std::vector<uint8_t> table;
  add(table, Madt{.header = header("APIC", 4),
                  .local_apic_address = static_cast<uint32_t>(kLocalApicAddress),
                  .flags = kPcatCompatible});
  for (unsigned i = 0; i < cpus; ++i) {
    add(table, MadtLocalApic{.processor_uid = static_cast<uint8_t>(i), .apic_id = static_cast<uint8_t>(i)});
  }
  add(table, MadtIoApic{.id = kIoApicId, .address = static_cast<uint32_t>(kIoApicAddress), .gsi_base = 0});
  add(table, MadtOverride{.source = 0, .gsi = 2, .flags = 0});
  add(table, MadtOverride{.source = kIrqSci, .gsi = kIrqSci, .flags = kActiveHighLevel});
  add(table, MadtLocalNmi{});
  return table;
}

std::vector<uint8_t> make_fadt(uint64_t facs_address, uint64_t dsdt_address) {
  Fadt fadt{};
  fadt.header = header("FACP", 6);
  fadt.firmware_ctrl = static_cast<uint32_t>(facs_address);
  fadt.dsdt = static_cast<uint32_t>(dsdt_address);
  fadt.x_dsdt = dsdt_address;
  fadt.sci_int = kIrqSci;
  // No SMI command port: the machine is always in ACPI mode.
  fadt.pm1a_evt_blk = kPortPm1Event;
  fadt.pm1_evt_len = 4;
  fadt.pm1a_cnt_blk = kPortPm1Control;
  fadt.pm1_cnt_len = 2;
  fadt.pm_tmr_blk = kPortPmTimer;
  fadt.pm_tmr_len = 4;
  fadt.x_pm1a_evt_blk = port(kPortPm1Event, 32);
  fadt.x_pm1a_cnt_blk = port(kPortPm1Control, 16);
  fadt.x_pm_tmr_blk = port(kPortPmTimer, 32);
  fadt.p_lvl2_lat = 0xfff;  // no C2, no C3
  fadt.p_lvl3_lat = 0xfff;
  fadt.century = 0x32;
  fadt.iapc_boot_arch = kLegacyDevices | kNoVga | kNoAspm;
  fadt.flags = kWbinvd | kProcC1 | kSleepButtonIsNone | kNoRtcWakeStatus | kTimerIs32Bit | kResetRegister;
  fadt.reset_reg = port(kPortResetControl, 8);
  fadt.reset_value = legacy::kResetControlHard;
  std::vector<uint8_t> table;
  add(table, fadt);
  return table;
}

}  // namespace

AcpiTables build_acpi_tables(unsigned cpus, uint64_t address) {
  assert(address % 16 == 0 && cpus >= 1 && cpus <= kMaxCpus);
  AcpiTables tables;
  tables.address = address;
  Builder builder(address);
  const Rsdp placeholder{};
  tables.rsdp_address = builder.append({reinterpret_cast<const uint8_t*>(&placeholder), sizeof placeholder});

  // The FACS is the one table that must lie 64-byte aligned; right after the RSDP (36 bytes) that is
  // offset 64.
  std::vector<uint8_t> padding(64 - 48);
  builder.append(padding);
  Facs facs{};
  std::memcpy(facs.signature, "FACS", 4);
  facs.length = sizeof facs;
  facs.version = 2;
  const uint64_t facs_address = builder.append({reinterpret_cast<const uint8_t*>(&facs), sizeof facs});

  const uint64_t dsdt_address = builder.append(dsdt());
  std::vector<uint8_t> xsdt;
  add(xsdt, header("XSDT", 1));
  add(xsdt, builder.append_table(make_fadt(facs_address, dsdt_address)));
  add(xsdt, builder.append_table(make_madt(cpus)));
  const uint64_t xsdt_address = builder.append_table(std::move(xsdt));

  Rsdp rsdp{};
  std::memcpy(rsdp.signature, "RSD PTR ", 8);
  std::memcpy(rsdp.oem_id, "SPINDL", 6);
  rsdp.revision = 2;
  rsdp.length = sizeof rsdp;
  rsdp.xsdt_address = xsdt_address;
  rsdp.checksum = checksum(&rsdp, 20);
  rsdp.extended_checksum = checksum(&rsdp, sizeof rsdp);
  tables.bytes = builder.take();
  std::memcpy(tables.bytes.data(), &rsdp, sizeof rsdp);
  return tables;
}

}  // namespace spindle::vmm
