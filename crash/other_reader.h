// Other readers: whether an image as a power cut left it is safe in QEMU's hands too, which know nothing of
// our order. A state is written out as a sparse file; then
//
//   qemu-img check      may find leaks, nothing worse
//   qemu-io             writes into a block that is not allocated yet, as a guest would on the next boot
//   qemu-img convert    reads everything: what it finds must be legal, and the block that was written to
//                       holds that write and zeroes
//
// Of vdi, qemu-img counts as an error that the header's count of blocks is larger than the number in use.
// That is what a leak looks like there and no danger: QEMU allocates at the count. A smaller count is one.
//
// Blocks, and starts programs: for tools.
#pragma once

#include <memory>
#include <string>

#include "crash/explore.h"
#include "crash/program.h"

namespace spindle::crash {

struct OtherVerdict {
  bool dangerous = false;
  std::string text;  ///< what was found, one line
};

class OtherReader {
 public:
  /// With a directory of its own under the system's for temporary files. NotFound, with what is missing, if
  /// QEMU's tools cannot be run.
  static Result<std::unique_ptr<OtherReader>> create();

  /// `image` shows the state; `block` bytes is its allocation unit. An error is the host's.
  Result<OtherVerdict> judge(const SectorImage& image, const std::string& format, uint64_t block,
                             const GuestModel& model);

 private:
  explicit OtherReader(WorkDirectory directory) : directory_(std::move(directory)) {}
  OtherVerdict compare(const std::string& path, uint64_t written, uint64_t block,
                       const GuestModel& model) const;

  WorkDirectory directory_;
};

struct OtherCounts {
  uint64_t states = 0;
  uint64_t dangerous = 0;
  std::string first;  ///< of the dangerous ones
};

/// Judges `states` states of the history, spread over its crash points by the seed.
Result<OtherCounts> ask_other_reader(OtherReader& reader, Reactor& reactor, const History& history,
                                     const Subject& subject, const std::string& format, uint64_t block,
                                     Tearing tearing, uint64_t seed, uint64_t states);

/// The image as a sparse file, replacing what is there.
Result<> write_out(const SectorImage& image, const std::string& path);

}  // namespace spindle::crash
