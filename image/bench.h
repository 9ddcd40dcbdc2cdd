// img bench: a run of equal requests against an image, timed. Options, arithmetic and last line are those of
// qemu-img bench, so that both can be run side by side.
//
// Requests are begun one step further each, from the start again when the end is reached, `depth` of them in
// flight together. A flush is due whenever the requests not yet begun are a multiple of the interval: then
// none is begun until all have ended and the flush has too; with `drain` off the flush runs beside them.
//
// Writing destroys what the image holds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "block/disk.h"

namespace spindle::image {

struct BenchOptions {
  uint64_t count = 75000;
  uint64_t depth = 64;
  uint64_t offset = 0;
  uint64_t request = 4096;  ///< bytes of each
  uint64_t step = 0;        ///< bytes from one to the next; 0: as long as a request
  bool write = false;
  uint8_t pattern = 0;
  uint64_t flush_interval = 0;  ///< requests; 0: no flushes
  bool drain = true;
};

/// Invalid if the options contradict each other, one line.
Result<> check_bench(const BenchOptions& options);
/// The line before the run, and if there are flushes another.
std::string bench_text(const BenchOptions& options);
/// The time from the first request to the end of the last.
Task<Result<std::chrono::nanoseconds>> run_bench(Disk& disk, BenchOptions options);

}  // namespace spindle::image
