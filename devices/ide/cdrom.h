// Cdrom: what a packet device has that an ATA disk has not: a tray with a medium that may be absent, and what
// its commands remember between each other (MMC-6).
//
// The medium is a Disk, read in blocks of 2,048 bytes. If its size is not a multiple of that, the last block
// ends in zeroes. An empty one (no blocks) is as good as none.
//
// Threading: the channel's lock.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <span>

#include "block/disk.h"
#include "devices/ide/mmc.h"

namespace spindle::ide {

class Cdrom {
 public:
  enum class MediaEvent : uint8_t { None = 0, NewMedia = 2, MediaRemoval = 3 };

  /// Null: the drive is empty.
  explicit Cdrom(std::shared_ptr<Disk> medium) : medium_(std::move(medium)) {}

  Sense sense;                          ///< of the last command, until it was asked for or another came
  MediaEvent event = MediaEvent::None;  ///< the next one for GET EVENT STATUS NOTIFICATION
  bool locked = false;                  ///< PREVENT ALLOW MEDIUM REMOVAL
  bool attention = false;               ///< the medium may have changed, and the host was not told yet

  bool tray_open() const { return tray_open_; }
  /// What lies in the tray, open or closed. May be null.
  const std::shared_ptr<Disk>& medium() const { return medium_; }

  /// Blocks that can be read now; 0 if the tray is open or empty.
  uint64_t blocks() const;
  bool ready() const { return blocks() != 0; }
  /// Why it is not.
  Sense not_ready() const { return tray_open_ ? kMediumNotPresentTrayOpen : kMediumNotPresentTrayClosed; }

  void open_tray();
  void close_tray();
  /// Machine reset: the tray is as it was.
  void power_on();

 private:
  std::shared_ptr<Disk> medium_;
  bool tray_open_ = false;
};

using Cdb = std::span<const uint8_t, kCdbBytes>;

/// What a packet command moves to the host.
struct PacketData {
  uint64_t bytes = 0;
  bool from_medium = false;  ///< else they are in the block that prepare() was given
  uint64_t first_block = 0;  ///< from_medium
};

struct PacketCommand {
  /// Looks at the drive and the CDB, without side effects but `block` (at least 512 bytes), which takes what
  /// is not on the medium.
  using Prepare = std::expected<PacketData, Sense> (*)(const Cdrom& cdrom, Cdb cdb, std::span<uint8_t> block);
  /// The part that changes the drive.
  using Accept = void (*)(Cdrom& cdrom, Cdb cdb);

  uint8_t opcode = 0;
  const char* name = nullptr;
  Prepare prepare = nullptr;
  Accept accept = nullptr;
  bool despite_attention = false;  ///< done even while a unit attention waits
  bool needs_medium = false;
};

/// The row for `opcode`, or null.
const PacketCommand* find_packet_command(uint8_t opcode);
/// prepare() of the row, after what all commands have in common: whether it exists, a waiting unit attention
/// (told by this), and the medium.
std::expected<PacketData, Sense> prepare_packet(Cdrom& cdrom, Cdb cdb, std::span<uint8_t> block);

}  // namespace spindle::ide
