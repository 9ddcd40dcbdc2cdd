// Workloads: what a guest does with its disk, as programs of steps made from a seed, and running one over a
// subject on a medium that records.
//
//   sequential   fresh blocks from the front to the back, a flush now and then
//   random       writes of all lengths anywhere
//   overwrite    a few blocks again and again, many of them in flight with others
//   allocate     small writes into fresh blocks, each followed by a flush (the 2015 pattern) or not
//   discard      discards, zeroes and reuse of the space
//   toggle       the cache turned off and on in mid-stream
//   resize       the disk grows and shrinks
//   fua          FUA writes among others
//   batch        many concurrent writes into the same fresh blocks
//   mixed        anything
//
// Threading: the calling thread, with the reactor it is given.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "crash/history.h"
#include "crash/recording_medium.h"
#include "crash/subject.h"

namespace spindle::crash {

/// The names above.
std::span<const std::string_view> workload_names();

struct Step {
  GuestEvent::Kind kind = GuestEvent::Kind::Write;
  uint64_t offset = 0;  ///< bytes
  uint64_t length = 0;  ///< bytes; Resize: the new size
  bool fua = false;
  bool unmap = false;    ///< of zeroes
  bool barrier = false;  ///< begins when all before it have ended
};

struct WorkloadOptions {
  uint64_t seed = 1;
  uint64_t steps = 200;
  bool write_back = true;
  uint64_t blocks = 64;           ///< of the subject's allocation unit, that the disk spans
  uint64_t default_block = 4096;  ///< where the subject has no unit of its own
  unsigned depth = 8;             ///< steps in flight
  RecordingMedium::Options medium = {};
};

/// The program of that name. Empty if there is no such name.
std::vector<Step> make_program(std::string_view name, uint64_t disk_bytes, uint64_t block, uint64_t steps,
                               uint64_t seed);

/// What the guest and the medium did, for a table.
struct WorkloadCounts {
  uint64_t guest_writes = 0;
  uint64_t medium_flushes = 0;
  double seconds = 0;
};

/// Creates an image, runs the program over it through a Disk and closes it; all from opening on is in the
/// history. An error where the subject fails at what a healthy medium under it should not.
Result<History> record_program(Reactor& reactor, const Subject& subject, std::string_view program,
                               const WorkloadOptions& options, WorkloadCounts* counts = nullptr);
/// The same with steps of one's own and a disk of that size in bytes.
Result<History> record_steps(Reactor& reactor, const Subject& subject, std::span<const Step> steps,
                             uint64_t disk_bytes, const WorkloadOptions& options,
                             WorkloadCounts* counts = nullptr);

/// The unit in which the subject allocates, bytes; 0 if it does not. Found by making an image in memory.
Result<uint64_t> block_of(Reactor& reactor, const Subject& subject);

}  // namespace spindle::crash
