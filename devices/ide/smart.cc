#include "devices/ide/smart.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <numeric>

#include "devices/ide/ata.h"

namespace spindle::ide {
namespace {

// The coarse clock costs a few nanoseconds, and it is read for every command; a tick is good enough.
uint64_t milliseconds_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1'000'000;
}

void put(std::span<uint8_t> to, uint64_t value) {
  for (uint8_t& byte : to) {
    byte = static_cast<uint8_t>(value);
    value >>= 8;
  }
}

// The last byte of each structure makes all 512 sum to zero.
void seal(std::span<uint8_t> block) {
  const unsigned sum = std::accumulate(block.begin(), block.begin() + kSectorBytes - 1, 0u);
  block[kSectorBytes - 1] = static_cast<uint8_t>(0x100 - (sum & 0xff));
}

// An attribute as smartctl and its kin know it. The meanings are the industry's, not the standard's.
struct Attribute {
  uint8_t id;
  uint16_t flags;
  uint8_t value;  // 100 is good; at or below the threshold a pre-failure attribute says the drive fails
  uint8_t threshold;
  uint64_t raw;
};
constexpr uint16_t kPreFailure = 1u << 0;
constexpr uint16_t kOnline = 1u << 1;
constexpr uint16_t kEventCount = 1u << 4;
constexpr uint16_t kFact = kOnline | kEventCount;

constexpr uint8_t kPowerOnHours = 9;
constexpr uint8_t kPowerCycles = 12;
constexpr uint8_t kProgramFailures = 181;
constexpr uint8_t kReportedUncorrectable = 187;
constexpr uint8_t kSectorsWritten = 241;
constexpr uint8_t kSectorsRead = 242;
constexpr uint8_t kGood = 100;
constexpr uint8_t kWorst = 1;
constexpr uint8_t kProgramFailureThreshold = 10;

// In both structures entries of twelve bytes follow a revision number.
constexpr uint16_t kRevision = 0x0010;
constexpr std::size_t kFirstAttribute = 2;
constexpr std::size_t kAttributeBytes = 12;

}  // namespace

Smart::Smart() : created_(milliseconds_now()), powered_on_(created_) {}

void Smart::powered_on() {
  powered_on_ = milliseconds_now();
  ++power_cycles_;
}

uint64_t Smart::hours() const {
  return (milliseconds_now() - created_) / 3'600'000;
}

void Smart::note_command(uint8_t control, const TaskFile& registers, uint8_t opcode) {
  std::shift_left(recent_.begin(), recent_.end(), 1);
  LoggedCommand& command = recent_.back();
  command = {.control = control,
             .features = registers.features.current,
             .count = registers.count.current,
             .lba_low = registers.lba_low.current,
             .lba_mid = registers.lba_mid.current,
             .lba_high = registers.lba_high.current,
             .device = registers.device,
             .command = opcode,
             .milliseconds = {}};
  put(command.milliseconds, milliseconds_now() - powered_on_);
}

void Smart::note_fault(Fault fault, const TaskFile& registers, uint8_t error, uint8_t status) {
  failing_ |= fault == Fault::Flush;
  if (!enabled) return;  // SMART DISABLE OPERATIONS stops all event counting
  ++(fault == Fault::Read ? unreadable_ : failed_writes_);
  ErrorEntry& entry = errors_[error_count_ % kErrorEntries];
  ++error_count_;
  constexpr uint8_t kStateActiveOrIdle = 3;
  entry = {.commands = recent_,
           .error = {.reserved = 0,
                     .error = error,
                     .count = registers.count.current,
                     .lba_low = registers.lba_low.current,
                     .lba_mid = registers.lba_mid.current,
                     .lba_high = registers.lba_high.current,
                     .device = registers.device,
                     .status = status,
                     .extended = {},
                     .state = kStateActiveOrIdle,
                     .hours = {}}};
  put(entry.error.hours, hours());
}

void Smart::fill_data(uint64_t sectors_written, uint64_t sectors_read, std::span<uint8_t> block) const {
  const auto reported = static_cast<uint8_t>(kGood - std::min<uint64_t>(unreadable_, kGood - kWorst));
  const Attribute attributes[] = {
      {kPowerOnHours, kFact, kGood, 0, hours()},
      {kPowerCycles, kFact, kGood, 0, power_cycles_},
      {kProgramFailures, kFact | kPreFailure, failing_ ? kWorst : kGood, kProgramFailureThreshold,
       failed_writes_},
      {kReportedUncorrectable, kFact, reported, 0, unreadable_},
      {kSectorsWritten, kFact, kGood, 0, sectors_written},
      {kSectorsRead, kFact, kGood, 0, sectors_read},
  };
  put(block.first(2), kRevision);
  std::span<uint8_t> entry = block.subspan(kFirstAttribute);
  for (const Attribute& attribute : attributes) {
    entry[0] = attribute.id;
    put(entry.subspan(1, 2), attribute.flags);
    entry[3] = attribute.value;
    entry[4] = attribute.value;  // the worst so far: none of them recovers
    put(entry.subspan(5, 6), attribute.raw);
    entry = entry.subspan(kAttributeBytes);
  }
  // Off-line data collection (362) has never started, and with its capabilities (367) all zero there is
  // neither that nor any self-test.
  constexpr uint16_t kAutosave = 1u << 1;
  constexpr uint8_t kErrorLogging = 1u << 0;
  put(block.subspan(368, 2), kAutosave);
  block[370] = kErrorLogging;
  seal(block);
}

void Smart::fill_thresholds(std::span<uint8_t> block) const {
  constexpr std::pair<uint8_t, uint8_t> kThresholds[] = {
      {kPowerOnHours, 0},          {kPowerCycles, 0},    {kProgramFailures, kProgramFailureThreshold},
      {kReportedUncorrectable, 0}, {kSectorsWritten, 0}, {kSectorsRead, 0},
  };
  put(block.first(2), kRevision);
  std::size_t at = kFirstAttribute;
  for (const auto& [id, threshold] : kThresholds) {
    block[at] = id;
    block[at + 1] = threshold;
    at += kAttributeBytes;
  }
  seal(block);
}

// The summary error log: which of the entries is the newest (0: none), the entries, how many there were.
void Smart::fill_error_log(std::span<uint8_t> block) const {
  constexpr std::size_t kEntriesAt = 2;
  constexpr std::size_t kCountAt = 452;
  static_assert(kEntriesAt + sizeof(errors_) == kCountAt);
  block[0] = 1;  // version
  if (error_count_ != 0) block[1] = static_cast<uint8_t>((error_count_ - 1) % kErrorEntries + 1);
  std::memcpy(block.data() + kEntriesAt, errors_.data(), sizeof(errors_));
  put(block.subspan(kCountAt, 2), std::min<uint64_t>(error_count_, UINT16_MAX));
  seal(block);
}

void Smart::fill_self_test_log(std::span<uint8_t> block) const {
  block[0] = 1;  // revision; no self-test has run, for there is none
  seal(block);
}

void Smart::fill_log_directory(std::span<uint8_t> block) const {
  put(block.first(2), 1);                                                               // version
  for (uint8_t address : {kSmartErrorLog, kSmartSelfTestLog}) block[2u * address] = 1;  // one sector each
}

}  // namespace spindle::ide
