// BadState: a state that is wrong, complete in itself: what had settled, which operations were in doubt and
// what of each reached the medium, what the guest may expect, and what was found. As JSON in a file it is
// what `--keep-bad` leaves behind and `spindle crash replay` judges again; docs/crash.md describes it.
//
// A file may come from anywhere: everything in it is checked before it is used.
//
// Threading: one thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "crash/explore.h"

namespace spindle::crash {

struct BadState {
  /// How the subject is made again: a format's name and its options.
  std::string format;
  FormatOptions options;
  std::string cache;     ///< "writeback" or "writethrough"
  std::string workload;  ///< and where it came from, for people
  uint64_t seed = 0;
  Position point = 0;
  Depth depth = Depth::Full;
  Corruption kind = Corruption::CheckError;
  std::string finding;

  struct Happened {
    Operation operation;  ///< of a write only the pieces that reached the medium
    std::vector<ByteSpan> parts;
  };
  std::unique_ptr<ContentStore> contents = std::make_unique<ContentStore>();
  SectorImage settled{*contents};
  std::vector<std::string> settled_last;  ///< the last operations that had settled, in words
  std::vector<Happened> doubts;           ///< in order
  std::optional<GuestModel::Expectation> expected;
};

/// A state of the laboratory's point, with all it depends on. The fields before `kind` are the caller's.
BadState make_bad_state(Laboratory& laboratory, const Choices& choices, const Finding& finding);

/// That, of a state that was found with this kind of corruption, made as small as it goes.
BadState minimised_state(Reactor& reactor, const History& history, const Subject& subject,
                         const StateKey& key, Corruption kind, Tearing tearing, Depth depth);

/// Replaces the file.
Result<> save(const BadState& state, const std::string& path);
/// Invalid: no such file of this version, with what is wrong with it.
Result<BadState> load_bad_state(const std::string& path);

/// Builds the state and judges it.
Verdict judge(Reactor& reactor, BadState& state, const Subject& subject);
/// In plain words, several lines: what had settled, what reached the medium and what did not.
std::string explain(const BadState& state);

}  // namespace spindle::crash
