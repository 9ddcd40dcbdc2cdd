// The work of commands that need the disk. Each runs on the reactor, sees only the Request, the Disk and the
// data's memory, and ends in an Outcome.
//
// How host errors show (ATA/ATAPI-6, 8: error outputs of each command):
//   reading        ERR, UNC, and the first bad sector in the LBA registers. The sectors before it have been
//                  delivered, as the standard has it and as Linux relies on.
//   writing        ERR, ABRT, and the first sector of the failed request: how much of it reached the medium
//                  is not known.
//   out of range   ERR, IDNF. Usually found when parsing; here only if the disk shrank meanwhile.
//   read-only      ERR, WP|ABRT. Hosts take bit 6 for a media error and do not try again.
//   flush, toggle  ERR, ABRT. After a failed flush writes end so too (D6).
#pragma once

#include "devices/ide/request.h"

namespace spindle::ide {

Task<Outcome> read_media(Drive& drive, const Request& request, Buffers data);
/// With the write cache off, and for FUA, it ends when the data is durable (D2).
Task<Outcome> write_media(Drive& drive, const Request& request, Buffers data);
/// What SMART is told of a write, discard or flush that failed. On the reactor.
Fault modification_fault(const Drive& drive, const Error& error);

/// Reads the range without handing it out. Works in pieces of 64 KiB.
Task<Outcome> verify_media(Drive& drive, const Request& request, Buffers data);
/// Ends when everything completed before it is durable (D1).
Task<Outcome> flush_media(Drive& drive, const Request& request, Buffers data);
/// SET FEATURES 02h and 82h (D3).
Task<Outcome> enable_write_cache(Drive& drive, const Request& request, Buffers data);
Task<Outcome> disable_write_cache(Drive& drive, const Request& request, Buffers data);

/// Blocks of a disc (Request::medium), for packet commands. Its errors are sense data. What lies beyond the
/// medium's end within its last block is zeroes.
Task<Outcome> read_disc(Drive& drive, const Request& request, Buffers data);

}  // namespace spindle::ide
