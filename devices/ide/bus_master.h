// BusMaster: one channel's half of the bus master IDE controller: its registers and the walk over the PRD
// table (PIIX4 datasheet, "Bus Master IDE I/O registers"; Programming Interface for Bus Master IDE, 1.0).
//
// The engine is a cursor over the table. Start puts it at the table's first entry; a DMA command consumes as
// many bytes as it transfers. So what the status register says at the end follows from where the cursor
// stands:
//   table used up                 Active 0, Interrupt 1: the normal end
//   table longer than transfer    Active 1, Interrupt 1: until the host clears Start
//   table shorter than transfer   Active 0, Interrupt 0: nothing was moved, the drive still waits for its
//   data an address that is no RAM     Error 1, Active 0, Interrupt 0: likewise
// In the last two the drive stays busy, as the real one does: a soft reset frees it, or a new Start with a
// better table, which performs the command.
//
// The guest owns the table and may change it at any time, so each entry is copied before it is looked at. An
// entry is read when the cursor reaches it, as the hardware fetches it.
//
// Threading: the channel's lock.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <vector>

#include "devices/guest_memory.h"
#include "devices/ide/ata.h"

namespace spindle::ide {

class BusMaster {
 public:
  enum class Gathered : uint8_t { All, TooShort, BusError };

  explicit BusMaster(const GuestMemory& memory) : memory_(memory) {}

  bool active() const { return status_ & kBmActive; }
  bool started() const { return command_ & kBmStart; }

  /// One register byte, offset below 8. Reserved ones read as zero.
  uint8_t read(unsigned offset) const;
  /// Table address and status only; see write_command for offset 0. Reserved ones are ignored.
  void write(unsigned offset, uint8_t value);
  /// The command register. Start 0 -> 1 puts the engine at the table's start, 1 -> 0 stops it.
  void write_command(uint8_t value);

  /// Takes the next `bytes` of the table into `parts` (cleared first), adjoining ones merged. After an odd
  /// number the cursor is behind a whole word, as that is what the bus moves. On TooShort and BusError the
  /// engine has stopped, the status says why, and `parts` is meaningless.
  Gathered gather(uint64_t bytes, std::vector<iovec>& parts);
  /// The transfer that gather() described has ended: Active falls if the table is used up. After a stop or a
  /// new start in between this does nothing: the cursor is elsewhere.
  void transfer_ended();

  /// INTRQ rose.
  void interrupt() { status_ |= kBmInterrupt; }
  void reset();

 private:
  Gathered bus_error();
  bool fetch_entry();

  const GuestMemory& memory_;
  uint8_t command_ = 0;
  uint8_t status_ = kBmDriveCapable;
  uint32_t table_ = 0;

  // The cursor.
  uint64_t next_entry_ = 0;  // guest address
  uint64_t table_end_ = 0;   // where the 64 KiB page that holds the table ends
  uint64_t address_ = 0;     // the rest of the current entry
  uint32_t remaining_ = 0;
  bool last_ = false;  // the current entry had EOT
};

}  // namespace spindle::ide
