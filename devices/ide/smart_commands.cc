// SMART (B0h): one opcode, whose Features register says which command it is. Each has a row of its own.
#include <algorithm>

#include "devices/ide/drive.h"
#include "devices/ide/smart.h"

namespace spindle::ide {
namespace {

Outcome accept_data(Drive& drive, const Request&, std::span<uint8_t> block) {
  const DiskCounters& counters = drive.disk().counters();
  const auto sector = block.first(kSectorBytes);
  std::ranges::fill(sector, 0);
  drive.smart.fill_data(counters.write_bytes.value() >> kSectorShift,
                        counters.read_bytes.value() >> kSectorShift, sector);
  return {};
}

template <void (Smart::*fill)(std::span<uint8_t>) const>
Outcome accept_sector(Drive& drive, const Request&, std::span<uint8_t> block) {
  const auto sector = block.first(kSectorBytes);
  std::ranges::fill(sector, 0);
  (drive.smart.*fill)(sector);
  return {};
}

template <bool on>
Outcome accept_operations(Drive& drive, const Request&, std::span<uint8_t>) {
  drive.smart.enabled = on;
  return {};
}

Outcome accept_status(Drive& drive, const Request&, std::span<uint8_t>) {
  const bool failing = drive.smart.failing();
  drive.registers.lba_mid.current = failing ? kSmartFailingMid : kSmartKeyMid;
  drive.registers.lba_high.current = failing ? kSmartFailingHigh : kSmartKeyHigh;
  return {};
}

constexpr Command row(const char* name, Protocol protocol, Command::Accept accept) {
  return {.opcode = kSmart, .name = name, .protocol = protocol, .accept = accept};
}

constexpr Command kReadData = row("SMART READ DATA", Protocol::PioIn, accept_data);
constexpr Command kReadThresholds =
    row("SMART READ ATTRIBUTE THRESHOLDS", Protocol::PioIn, accept_sector<&Smart::fill_thresholds>);
// Either choice will do: there is nowhere to save attributes to.
constexpr Command kAutosave = row("SMART ENABLE/DISABLE ATTRIBUTE AUTOSAVE", Protocol::NonData, nullptr);
constexpr Command kLogDirectory =
    row("SMART READ LOG: directory", Protocol::PioIn, accept_sector<&Smart::fill_log_directory>);
constexpr Command kErrorLog =
    row("SMART READ LOG: summary error log", Protocol::PioIn, accept_sector<&Smart::fill_error_log>);
constexpr Command kSelfTestLog =
    row("SMART READ LOG: self-test log", Protocol::PioIn, accept_sector<&Smart::fill_self_test_log>);
constexpr Command kEnable = row("SMART ENABLE OPERATIONS", Protocol::NonData, accept_operations<true>);
constexpr Command kDisable = row("SMART DISABLE OPERATIONS", Protocol::NonData, accept_operations<false>);
constexpr Command kReturnStatus = row("SMART RETURN STATUS", Protocol::NonData, accept_status);

// Null for a log that is not there, or of which more is wanted than the sector it has.
const Command* find_log(const TaskFile& registers) {
  if (registers.count.current != 1) return nullptr;
  switch (registers.lba_low.current) {
    case kSmartLogDirectory:
      return &kLogDirectory;
    case kSmartErrorLog:
      return &kErrorLog;
    case kSmartSelfTestLog:
      return &kSelfTestLog;
  }
  return nullptr;
}

const Command* find_smart_command(const TaskFile& registers) {
  switch (registers.features.current) {
    case kSmartReadData:
      return &kReadData;
    case kSmartReadThresholds:
      return &kReadThresholds;
    case kSmartAutosave: {
      const uint8_t choice = registers.count.current;
      return choice == kSmartAutosaveOn || choice == kSmartAutosaveOff ? &kAutosave : nullptr;
    }
    case kSmartReadLog:
      return find_log(registers);
    case kSmartEnable:
      return &kEnable;
    case kSmartDisable:
      return &kDisable;
    case kSmartReturnStatus:
      return &kReturnStatus;
  }
  return nullptr;
}

}  // namespace

std::expected<Request, Outcome> parse_smart(const Drive& drive, const Command&, const TaskFile& registers) {
  // The key keeps a stray B0h from meaning anything.
  const bool keyed = registers.lba_mid.current == kSmartKeyMid && registers.lba_high.current == kSmartKeyHigh;
  const Command* command = keyed ? find_smart_command(registers) : nullptr;
  if (!command || (!drive.smart.enabled && command != &kEnable))
    return std::unexpected(Outcome::failed(kAbrt));
  return plain_request(*command, registers);
}

}  // namespace spindle::ide
