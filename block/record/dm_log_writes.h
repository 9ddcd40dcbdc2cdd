// Writes a log in the format of Linux's dm-log-writes target (Documentation/admin-guide/device-mapper/
// log-writes.rst, drivers/md/dm-log-writes.c), for tools that replay such logs onto a device.
//
// That format has one order, in which a replay may stop anywhere. It is made as the target makes it: a write
// stands where it completed, a flush where it was submitted. So what was in flight when a flush was submitted
// comes after it, and in every prefix that ends in a flush only that is missing which the flush had to cover.
//
// - First comes what the file held, then a mark "spindle-base"; replay onto a device of zeroes.
// - Writes that failed, and flushes that did, are left out and counted: nobody knows what reached the medium.
//   Writes that never completed come last.
// - Zeroes become writes of zeroes, so that replays without discard show them too; shrinking becomes a
//   discard of what is cut off, since a device has one size.
// - Sectors are 512 bytes. An operation on parts of them cannot be said, and is an error.
//
// Blocks: for tools.
#pragma once

#include <cstdint>
#include <string>

#include "block/record/log_reader.h"

namespace spindle::record {

struct ExportSummary {
  uint64_t entries = 0;  ///< of the export
  uint64_t writes = 0;   ///< operations
  uint64_t flushes = 0;
  uint64_t failed = 0;        ///< operations left out
  uint64_t unfinished = 0;    ///< writes at the end that never completed
  LogEnd end = LogEnd::Cut;   ///< of the log
  uint64_t device_bytes = 0;  ///< what a replay needs
};

/// From the log file `log` to `output`, which must not exist; on an error it is removed again.
Result<ExportSummary> export_dm_log_writes(const std::string& log, const std::string& output);

}  // namespace spindle::record
