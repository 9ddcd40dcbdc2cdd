// Smart: what a drive remembers of its life for the SMART feature set of ATA8-ACS: attributes, the last
// errors with the commands that led to them, and whether the drive expects to fail.
//
// What it tells is what happened. Sectors that could not be read, writes and flushes that failed, and the
// sectors moved are counted; nothing that a disk in a file does not have is made up. The drive "fails" when a
// flush has failed: from then on it takes no writes (D6), and RETURN STATUS and attribute 181 say so.
//
// Nothing here outlives the monitor. The host's choice to disable it survives every reset, as ATA has it
// survive power cycles.
//
// Threading: the channel's lock.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <span>

#include "devices/ide/request.h"

namespace spindle::ide {

/// A command as the error log keeps it.
struct LoggedCommand {
  uint8_t control, features, count, lba_low, lba_mid, lba_high, device, command;
  std::array<uint8_t, 4> milliseconds;  ///< since power-on, little endian
};
static_assert(sizeof(LoggedCommand) == 12);

/// The registers that a command ended with.
struct LoggedError {
  uint8_t reserved, error, count, lba_low, lba_mid, lba_high, device, status;
  std::array<uint8_t, 19> extended;
  uint8_t state;
  std::array<uint8_t, 2> hours;  ///< power-on hours, little endian
};
static_assert(sizeof(LoggedError) == 30);

/// An error and the last five commands, of which the fifth is the one that failed.
struct ErrorEntry {
  std::array<LoggedCommand, 5> commands;
  LoggedError error;
};
static_assert(sizeof(ErrorEntry) == 90);

class Smart {
 public:
  Smart();

  bool enabled = true;

  void powered_on();
  /// A command begins. Device Control goes into the log with it.
  void note_command(uint8_t control, const TaskFile& registers, uint8_t opcode);
  /// A command has ended in a fault of the medium, which `registers`, `error` and `status` show.
  void note_fault(Fault fault, const TaskFile& registers, uint8_t error, uint8_t status);

  /// A flush has failed: the drive's end (D6).
  bool failing() const { return failing_; }

  // Sectors for the host: `block` is one, zeroed before.
  /// SMART READ DATA. `sectors_written` and `sectors_read` are those of the disk.
  void fill_data(uint64_t sectors_written, uint64_t sectors_read, std::span<uint8_t> block) const;
  void fill_thresholds(std::span<uint8_t> block) const;
  void fill_error_log(std::span<uint8_t> block) const;
  void fill_self_test_log(std::span<uint8_t> block) const;
  void fill_log_directory(std::span<uint8_t> block) const;

 private:
  static constexpr std::size_t kErrorEntries = 5;

  uint64_t hours() const;

  uint64_t created_;     // milliseconds of the host's clock
  uint64_t powered_on_;  // likewise
  uint64_t power_cycles_ = 0;
  uint64_t unreadable_ = 0;
  uint64_t failed_writes_ = 0;
  bool failing_ = false;
  std::array<LoggedCommand, 5> recent_{};           // the oldest first
  std::array<ErrorEntry, kErrorEntries> errors_{};  // entry n of all goes to n modulo their number
  uint64_t error_count_ = 0;
};

/// SMART (B0h): Features says which of its commands.
std::expected<Request, Outcome> parse_smart(const Drive& drive, const Command& command,
                                            const TaskFile& registers);

}  // namespace spindle::ide
