// What the host asked a drive for, as values: the Command (a row of the table), the Request (one use of it,
// parsed and validated), the Outcome (how it ended).
//
// A command goes through these steps, and only in this order:
//   parse    looks at the drive and at a copy of its registers and gives a Request or a refusal. No side
//            effects: a refused command has changed nothing.
//   accept   (optional) the part that changes the drive's own state, or fills the data block from it. Runs
//            under the channel's lock, at once, and never waits.
//   work     (optional) the part that needs the disk: a coroutine on the reactor, without the lock, which
//   sees
//            the Request and the Disk and nothing else. With data, once per block.
// The channel then writes the Outcome into the registers, if they still belong to the same command.
//
// A Request carries its own address and length. Whatever happens to the registers while it is in flight
// (soft reset, another command's parameters), it lands where it was aimed.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <span>

#include "block/io/task.h"
#include "block/node.h"
#include "devices/ide/mmc.h"
#include "devices/ide/task_file.h"

namespace spindle {
class Disk;
}

namespace spindle::ide {

class Drive;
struct Request;

/// How data moves between host and device (ATA/ATAPI-6, 9).
enum class Protocol : uint8_t {
  NonData,
  PioIn,
  PioOut,
  DmaIn,
  DmaOut,
  Diagnostic,  ///< EXECUTE DEVICE DIAGNOSTIC: addresses both devices
  Packet,      ///< PACKET: a command block from the host, and then what it says
};

/// What of the medium an error is about, for SMART. None: the request was at fault.
enum class Fault : uint8_t {
  None,
  Read,
  Write,  ///< or a discard
  Flush,  ///< a flush, or a write after one failed: the disk takes no more (D6)
};

struct Outcome {
  uint8_t error = 0;                  ///< the Error register; not 0 means ERR
  std::optional<uint64_t> lba = {};   ///< the first sector in error, for the LBA registers
  uint32_t good_sectors = 0;          ///< of a failed transfer: how many leading sectors are fine
  std::optional<uint8_t> count = {};  ///< a result in the Count register
  Fault fault = Fault::None;
  Sense sense = {};  ///< of a packet command that failed

  bool ok() const { return error == 0; }
  static Outcome failed(uint8_t error_register) { return {.error = error_register}; }
};

struct Command {
  using Parse = std::expected<Request, Outcome> (*)(const Drive& drive, const Command& command,
                                                    const TaskFile& registers);
  /// `block`: memory for data towards the host (PioIn), at least one sector.
  using Accept = Outcome (*)(Drive& drive, const Request& request, std::span<uint8_t> block);
  using Work = Task<Outcome> (*)(Drive& drive, const Request& request, Buffers data);

  uint8_t opcode = 0;
  const char* name = nullptr;
  Protocol protocol = Protocol::NonData;
  Parse parse = nullptr;
  Accept accept = nullptr;
  Work work = nullptr;
  bool ext = false;       ///< 48-bit address and 16-bit count
  bool multiple = false;  ///< DRQ blocks of the SET MULTIPLE MODE size
  bool fua = false;
  bool writes = false;  ///< changes the medium
};

struct Request {
  const Command* command = nullptr;
  Command::Accept accept = nullptr;
  Command::Work work = nullptr;
  TaskFile registers;                   ///< as they were when the command was written
  uint64_t lba = 0;                     ///< first sector, for commands that have one
  uint64_t bytes = 0;                   ///< data to move, or to verify: of ATA commands whole sectors
  uint32_t block_bytes = kSectorBytes;  ///< PIO: at most so many bytes a DRQ block

  Disk* medium = nullptr;  ///< packet commands that read: what from; null once it was taken away

  uint32_t sectors() const { return static_cast<uint32_t>(bytes >> kSectorShift); }
  /// The part [done, done + count) of it, in bytes; `done` is whole sectors.
  Request part(uint64_t done, uint64_t count) const {
    Request result = *this;
    result.lba += done >> kSectorShift;
    result.bytes = count;
    return result;
  }
};

/// `command` as its row has it, without an address; of data from the drive one sector.
inline Request plain_request(const Command& command, const TaskFile& registers) {
  return {.command = &command,
          .accept = command.accept,
          .work = command.work,
          .registers = registers,
          .bytes = command.protocol == Protocol::PioIn ? kSectorBytes : 0u};
}

}  // namespace spindle::ide
