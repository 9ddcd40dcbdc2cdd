// DATA SET MANAGEMENT with TRIM (ACS-3, 7.5): the host names ranges of sectors whose content it no longer
// needs.
//
// The data is blocks of 512 bytes, each of 64 entries: a 48-bit LBA and a 16-bit count of sectors, little
// endian. All of it is copied and checked before the first range is touched, so a payload with one bad entry
// does nothing.
//
// TRIM is offered where it does something: on disks with discard=unmap over a node that can.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "block/disk.h"
#include "devices/ide/request.h"

namespace spindle::ide {

/// Blocks of entries one command takes (word 105).
inline constexpr uint16_t kMaxTrimBlocks = 8;

/// What reads find where TRIM has been (word 69).
struct TrimPromise {
  bool deterministic = false;  ///< DRAT: the same at every read until it is written
  bool zeroes = false;         ///< RZAT: zeroes
};

bool offers_trim(const Drive& drive);
TrimPromise trim_promise(const Drive& drive);

/// The ranges that a payload (whole entries) names on a disk of `sectors`, in bytes. Entries of no sectors
/// are left out, and neighbours in order become one range: hosts cut long ranges into pieces of 65,535
/// sectors, whose ends lie within the node's granules and would keep those from being freed. Nothing if an
/// entry reaches beyond the end.
std::optional<std::vector<ByteRange>> trim_ranges(std::span<const uint8_t> payload, uint64_t sectors);

std::expected<Request, Outcome> parse_trim(const Drive& drive, const Command& command,
                                           const TaskFile& registers);
/// With the write cache off it ends when the discards are durable (D2, D7).
Task<Outcome> trim_media(Drive& drive, const Request& request, Buffers data);

}  // namespace spindle::ide
