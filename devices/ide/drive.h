// Drive: one device on a channel: its registers, what the guest has chosen, and its Disk; or, of a packet
// device, the tray that a Disk may lie in.
//
// The write cache is not a setting here: it belongs to the Disk, which alone knows whether it is on (D1-D4).
//
// Threading: all but disk() and the constructor's facts belongs to the channel and is touched under its lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "block/disk.h"
#include "block/result.h"
#include "devices/ide/cdrom.h"
#include "devices/ide/request.h"
#include "devices/ide/smart.h"

namespace spindle::ide {

struct DriveOptions {
  std::string serial = "";       ///< at most 20 printable ASCII characters; empty: one made from the position
  std::string model = "";        ///< at most 40; empty: SPINDLE HARDDISK, or SPINDLE DVD-ROM
  std::string firmware = "1.0";  ///< at most 8
};

/// Nothing if the strings fit IDENTIFY DEVICE, else what is wrong.
Result<> check(const DriveOptions& options);

inline constexpr uint8_t kMaxMultiple = 16;

struct Geometry {
  uint32_t cylinders = 0;
  uint32_t heads = 0;
  uint32_t sectors = 0;  ///< a track

  /// Sectors that have a CHS address: whole cylinders only.
  uint64_t capacity() const { return uint64_t{cylinders} * heads * sectors; }
};

class Drive {
 public:
  /// What the guest chooses and a reset may take back.
  struct Settings {
    uint8_t multiple = kMaxMultiple;  ///< sectors a block of READ/WRITE MULTIPLE, 0: disabled
    bool look_ahead = true;
    uint8_t heads = kDefaultHeads;  ///< the CHS translation: INITIALIZE DEVICE PARAMETERS
    uint8_t sectors_per_track = kDefaultSectorsPerTrack;
  };
  enum class Power : uint8_t { Active, Idle, Standby, Sleep };

  Drive(std::shared_ptr<Disk> disk, DriveOptions options, unsigned unit);
  Drive(std::unique_ptr<Cdrom> cdrom, DriveOptions options, unsigned unit);

  // ---- any thread ----
  /// Whether it is a packet device, which has a cdrom() instead of a disk().
  bool is_packet() const { return cdrom_ != nullptr; }
  Disk& disk() const { return *disk_; }
  const DriveOptions& options() const { return options_; }
  unsigned unit() const { return unit_; }
  /// Sectors the guest can address. 0 is possible: every access is then out of range.
  uint64_t sectors() const;
  /// What the drive calls its native geometry (words 1, 3, 6).
  Geometry default_geometry() const;

  // ---- under the channel's lock ----
  Cdrom& cdrom() const { return *cdrom_; }

  TaskFile registers;
  uint8_t status = kReady;  ///< without BSY and DRQ, which the channel knows
  uint8_t error = kDiagnosticPassed;
  bool interrupt_pending = false;
  bool alone = true;  ///< no other device on the cable

  Settings settings;
  uint8_t transfer_mode = kModePio | kHighestPio;  ///< the last one set by SET FEATURES 03h
  Power power = Power::Active;
  Smart smart;
  bool revert_on_soft_reset = false;  ///< after SET FEATURES CCh (D4)

  const Command* find(uint8_t opcode) const;
  /// The translation in force (words 54-58).
  Geometry geometry() const;
  /// How many sectors can be addressed in the way that `command` and `from` do it: words 100-103, 60-61 or
  /// 57-58.
  uint64_t addressable(const Command& command, const TaskFile& from) const;
  /// The sector that a CHS address in `from` names, or nullopt for an address that does not exist.
  std::optional<uint64_t> lba_of_chs(const TaskFile& from) const;
  /// Puts `lba` into the registers in the way that `request` addressed the drive.
  void show_address(const Request& request, uint64_t lba);

  /// The device's signature, in the registers only.
  void put_signature();
  /// What a reset leaves: the signature, no error, no interrupt, and of a packet device no DRDY either
  /// (ATA/ATAPI-6, 9.12).
  void show_signature();
  /// Settings after power-on or machine reset.
  void power_on();
  /// Settings after a soft reset: kept, or after CCh back to those of power-on.
  void soft_reset();

 private:
  Geometry translated(uint32_t heads, uint32_t sectors_per_track) const;

  std::shared_ptr<Disk> disk_;
  std::unique_ptr<Cdrom> cdrom_;
  DriveOptions options_;
  unsigned unit_;
};

}  // namespace spindle::ide
