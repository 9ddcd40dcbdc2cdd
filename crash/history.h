// History: what happened to a file, and what its guest asked for and was told, in one order of events.
//
// Positions are indices in that order. An operation of the file has the position it was submitted at and the
// one it completed at; so has what the guest did with its disk. From positions alone follows what a power cut
// just before any of them may leave:
//
//   durable      completed before the submission of a flush that itself has completed; or FUA and completed
//   uncertain    submitted, and not durable: it may have reached the medium, in whole or in part, or not
//
// An operation that failed stays uncertain for good: nobody can say what it did.
//
// Two ways to one: a workload over a RecordingMedium (run_workload.h), and a log of `record` (log_history.h),
// which knows nothing of the guest.
//
// Threading: built by one thread, then read by any number.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "crash/content.h"
#include "crash/image.h"

namespace spindle::crash {

using Position = uint64_t;
inline constexpr Position kNever = ~0ull;

struct ByteSpan {
  uint64_t from = 0;
  uint64_t to = 0;  ///< behind it
  bool overlaps(const ByteSpan& other) const { return from < other.to && other.from < to; }
};

/// An operation on the file.
struct Operation {
  enum class Kind : uint8_t { Write, Zero, Discard, Flush, Resize } kind = Kind::Flush;
  bool fua = false;
  bool unmap = false;
  bool failed = false;
  /// Of a discard: the medium took the hint. Where it did not, nothing ever changes.
  bool took_effect = true;
  uint64_t offset = 0;  ///< bytes; Resize: the size before
  uint64_t length = 0;  ///< bytes; Resize: the size asked for
  Position submitted = 0;
  Position completed = kNever;
  Position durable = kNever;  ///< from here on; see finish()

  struct Piece {
    uint64_t sector;
    ContentId content;
    uint16_t from, to;  ///< bytes of the sector that were written
  };
  std::vector<Piece> pieces;  ///< of a write, in order of sectors

  bool changes() const { return kind != Kind::Flush; }
  /// What it may change. A resize: all from the smaller of both sizes on.
  ByteSpan span() const {
    if (kind == Kind::Resize) return {offset < length ? offset : length, kNever};
    return {offset, offset + length};
  }
  bool concurrent_with(const Operation& other) const {
    return submitted < other.completed && other.submitted < completed;
  }
};
std::string describe(const Operation& operation);

/// What the guest did with its disk, or its user.
struct GuestEvent {
  enum class Kind : uint8_t { Write, Zero, Discard, Flush, Resize, CacheOn, CacheOff } kind = Kind::Flush;
  bool fua = false;
  bool failed = false;
  uint64_t offset = 0;  ///< bytes; Resize: the size before
  uint64_t length = 0;  ///< bytes; Resize: the size asked for
  uint32_t write = 0;   ///< number of the pattern, of a write
  Position submitted = 0;
  Position completed = kNever;
};

struct History {
  std::unique_ptr<ContentStore> contents = std::make_unique<ContentStore>();
  SectorImage base{*contents};        ///< the file when the recording began
  std::vector<Operation> operations;  ///< by submission
  std::vector<GuestEvent> guest;      ///< by submission
  bool has_guest = false;
  bool starts_write_back = true;
  uint64_t guest_size = 0;  ///< bytes of the disk at the start
  /// Content of guest sectors at the start that are not zeroes.
  std::vector<std::pair<uint64_t, ContentId>> guest_start;
  /// Bit i: Corruption i (verdict.h) was there when the recording began, so that no state is to blame for it.
  uint32_t wrong_before = 0;
  Position end = 1;  ///< behind the last event; 0 is before all
  /// Bytes of the file that hold guest data at the end, as far as the format says: for sampling.
  std::vector<ByteSpan> data_spans;

  /// Once all has been recorded: works out what became durable when.
  void finish();
  /// Where a power cut is looked at: just before each event that makes something durable, and at the end.
  /// Between two of these what is durable stays the same while more may have reached the medium, so every
  /// state that is possible earlier is possible there too.
  std::vector<Position> crash_points() const;
  /// Nothing but guest data, as far as is known.
  bool is_data(const Operation& operation) const;

  /// An operation in flight that wrote at or beyond the end of the file when it began to grow: on XFS before
  /// Linux 5.5 that destroys data.
  struct GrowthRace {
    std::size_t write;
    std::size_t growth;
  };
  std::vector<GrowthRace> growth_races() const;
};

/// Carries out [from, to) of the operation's range on `image`; all of a resize. A write or zeroes that reach
/// beyond the end take the size along, but zeroes that give space back never do.
void apply(const Operation& operation, const ByteSpan& part, SectorImage& image);
/// All of it.
inline void apply(const Operation& operation, SectorImage& image) {
  apply(operation, operation.span(), image);
}

}  // namespace spindle::crash
