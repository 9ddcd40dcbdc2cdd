// Cdrom: what a packet device has that an ATA disk has not: a tray with a medium that may be absent, and what
// its commands remember between each other (MMC-6).
//
// The medium is a Disk, read in blocks of 2,048 bytes. If its size is not a multiple of that, the last block
// ends in zeroes. An empty one (no blocks) is as good as none.
//
// The guest moves the tray by its commands, the host's user from outside (channel.h), who also changes what
// lies in it. The guest learns of a medium once by a unit attention, and once by an event.
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
  enum class MediaEvent : uint8_t { None = 0, EjectRequest = 1, NewMedia = 2, MediaRemoval = 3 };

  /// Null: the drive is empty.
  explicit Cdrom(std::shared_ptr<Disk> medium) : medium_(std::move(medium)) {}

  Sense sense;             ///< of the last command, until it was asked for or another came
  bool locked = false;     ///< PREVENT ALLOW MEDIUM REMOVAL
  bool attention = false;  ///< the medium may have changed, and the host was not told yet

  bool tray_open() const { return tray_open_; }
  /// What lies in the tray, open or closed. May be null.
  const std::shared_ptr<Disk>& medium() const { return medium_; }

  /// Blocks that can be read now; 0 if the tray is open or empty.
  uint64_t blocks() const;
  bool ready() const { return blocks() != 0; }
  /// Why it is not.
  Sense not_ready() const { return tray_open_ ? kMediumNotPresentTrayOpen : kMediumNotPresentTrayClosed; }
  /// How a command ends whose medium was taken away while it ran. If there is another, it is told with this.
  Sense tell_medium_gone();

  /// The next one for GET EVENT STATUS NOTIFICATION: what became of the medium, then the wish for it.
  MediaEvent event() const;
  void event_told();

  void open_tray();
  void close_tray();
  /// Somebody would have the tray open, which is locked.
  void ask_to_eject() { eject_wanted_ = true; }
  /// Swaps what lies in the open tray for `medium`; null is nothing.
  void exchange(std::shared_ptr<Disk>& medium) { medium_.swap(medium); }
  /// Machine reset: the tray is as it was.
  void power_on();

 private:
  std::shared_ptr<Disk> medium_;
  bool tray_open_ = false;
  MediaEvent moved_ = MediaEvent::None;
  bool eject_wanted_ = false;
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
