// Space: which clusters of the image's file are handed out next, and when one that was given up may be.
//
// A cluster that is handed out reads as zeroes and has one user in the counts already: Space makes a window
// of them ready ahead, out of holes that the counts show and then by growing the file, so that whoever writes
// takes one without waiting. It is *ready* once a commit has made its count and its zeroes durable; a pointer
// to one that is not needs a barrier first.
//
// A window whose counts lie in a new refcount block is not handed out before the refcount table durably
// points to that block. New blocks, and a refcount table that has to grow, take clusters of the window
// itself.
//
// What is given up (free()) goes a long way: its pointer goes with the next commit; then every request that
// may have seen the pointer ends; then its range is punched; then its count goes down, and only then may it
// be used again. A crash anywhere in between leaves a count too high.
//
// What the file shows when it is opened may be younger than what is durable, so before the first hole is used
// a barrier passes: the durable tables may still point to it.
//
// Threading: the node's reactor only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "block/filters/turn.h"
#include "block/node.h"
#include "formats/qcow2/cluster_set.h"
#include "formats/qcow2/in_flight.h"
#include "formats/qcow2/node_mutation.h"
#include "formats/qcow2/refcounts.h"

namespace spindle::qcow2 {

class Space {
 public:
  struct Options {
    uint64_t step = 64 << 20;  ///< bytes that are made ready at once
    bool ahead = true;         ///< else a cluster at a time, when it is needed
    NodeMutation mutation = NodeMutation::None;
  };
  struct Taken {
    uint64_t cluster = 0;
    uint64_t count = 0;
    bool ready = false;
  };
  /// How Space reaches the rest of the image; called on the reactor.
  struct Image {
    std::function<Task<Result<>>()> flush;  ///< a commit
    /// The refcount table lies elsewhere: the header is to say so.
    std::function<void(uint64_t offset, uint64_t clusters)> table_moved;
    std::function<void(uint64_t cluster)> reused;  ///< its last user is gone
  };

  Space(Node& file, const Layout& layout, Refcounts& refcounts, ClusterSet& metadata, InFlight& requests,
        Options options, Image image);

  /// At most `most` clusters in a row; nullopt if none is at hand, then make_room() comes first.
  std::optional<Taken> take(uint64_t most);
  /// Exactly `count` in a row, for a table.
  Task<Result<Taken>> take_run(uint64_t count);
  /// Whether it is time to make room, before there is none.
  bool low() const { return options_.ahead && at_hand_ < step_ / 2 && !failed_; }
  /// At least one cluster more to take, or `least` in a row. The caller looks again: others take, too.
  /// Errors: NoSpace, Corrupt (the counts contradict what the tables say), those of the file.
  Task<Result<>> make_room(uint64_t least = 1);

  /// Nothing in memory points to these any more.
  void free(uint64_t first, uint64_t count);
  /// What was taken and never pointed to.
  void give_back(uint64_t first, uint64_t count) {
    gone_.push_back({{{first, count}}, requests_.end_epoch()});
  }
  /// Lets go of what was given up long enough ago. Errors: those of reading counts.
  Task<Result<>> release();
  bool has_to_release() const { return !gone_.empty(); }
  /// Counts down what is at hand and was not taken. Where the file may be cut once that is written.
  Task<Result<uint64_t>> put_down();
  bool touched() const { return touched_; }
  /// The file cannot grow, as a device cannot.
  bool fixed() const { return fixed_; }
  /// The refcount table is being changed and is not to be written now.
  bool linking() const { return linking_; }

  uint64_t waiting_bytes() const { return freed_.size() * sizeof(Clusters); }

  // For Commit::Owner.
  void freeze();
  void published();
  void restore();

 private:
  struct Clusters {
    uint64_t first = 0;
    uint64_t count = 0;
  };
  struct Gone {
    std::vector<Clusters> runs;
    uint64_t epoch;
  };
  struct Window {
    Clusters clusters;
    uint64_t serial;       // of the last commit frozen when it was made
    bool must_be_durable;  // its counts lie in a new block
  };

  bool ready(const Window& window) const { return published_ > window.serial; }
  uint64_t file_clusters() const { return layout_.clusters(file_.size()); }
  Task<Result<>> make_room_now(uint64_t least);
  Task<Result<Clusters>> find_free(uint64_t least, uint64_t most);
  Task<Result<>> use(Clusters run);
  Task<Result<>> count(Clusters run);
  uint64_t missing_blocks(Clusters run) const;
  Task<Result<>> zero_holes(Clusters run);
  Task<Result<Clusters>> grow(Clusters run, uint64_t least);
  Result<Clusters> with_metadata(Clusters run);
  Task<Result<>> release_now();
  Task<Result<>> drop(Clusters run);
  Task<Result<>> align_end();
  std::unexpected<BoxedError> no_space(const char* detail) const;

  Node& file_;
  Layout layout_;
  Refcounts& refcounts_;
  ClusterSet& metadata_;
  InFlight& requests_;
  Options options_;
  Image image_;
  Turns turns_;
  uint64_t step_;        // in clusters
  uint64_t cursor_ = 0;  // no free cluster lies below it
  std::deque<Window> windows_;
  uint64_t at_hand_ = 0;
  uint64_t rounds_ = 0;  // of make_room() that have ended well
  bool settled_ = false;
  bool touched_ = false;
  bool linking_ = false;
  bool failed_ = false;     // the last make_room(): none is tried early until one has succeeded
  bool fixed_ = false;      // the file cannot grow
  uint64_t new_table_ = 0;  // clusters that a larger refcount table takes of the run in hand
  uint64_t serial_ = 0, frozen_ = 0, published_ = 0;
  std::vector<Clusters> freed_, frozen_freed_;
  std::deque<Gone> gone_;
};

}  // namespace spindle::qcow2
