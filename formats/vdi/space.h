// Space: which places of the data area new blocks may have.
//
//   0 ... next ... grown          next: nothing at or above it was ever handed out
//          |         |            grown: the file reaches to here, and reads as zeroes from `next` on
//          +- ready -+            below `ready`: all of it is durable, and so is an allocated count that
//          covers it
//
// The file grows ahead of need, in steps, and the header's allocated count runs ahead with it: it is an upper
// bound, so other programs may put a block at it in any crash state. A block whose place is ready can be
// pointed at by the next commit without a barrier of its own. One whose place is not, cannot: until the count
// that covers it is durable, a crash could leave a pointer to where another program allocates next.
//
// Places below `next` that nothing points to (a crash leaves such) are used again before the file grows. They
// hold whatever was there, so they are zeroed first, and are ready when that is durable.
//
// What is taken for unused when an image is opened may be used in the map that is durable, if whoever had the
// image before was killed in the middle of a repair: so nothing is zeroed or cut off before one barrier has
// passed.
//
// Threading: the node's reactor only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "block/filters/turn.h"
#include "formats/vdi/header.h"
#include "formats/vdi/mutation.h"

namespace spindle::vdi {

class Space {
 public:
  struct Options {
    uint64_t step = 64 << 20;  ///< bytes that the file grows ahead
    bool ahead = true;         ///< else the file grows by what is needed, as does the allocated count
    Mutation mutation = Mutation::None;
  };

  /// `used`: the places that entries point to, in order. `barrier` makes durable all that was done to the
  /// file; used once, if at all.
  Space(Node& file, const Header& header, const std::vector<uint32_t>& used, Options options,
        std::function<Task<Result<>>()> barrier);

  /// A place for a block; nullopt if make_room() must come first.
  std::optional<uint32_t> take();
  /// True when it is time to grow, though there is some left.
  bool low() const;
  /// Makes some, if there is any to be made. One at a time; who comes meanwhile waits, and has to see whether
  /// what the first made is enough.
  Task<Result<>> make_room();

  bool ready(uint32_t place) const;
  /// What the header's allocated count has to be, at least.
  uint32_t count() const { return static_cast<uint32_t>(options_.ahead ? grown_ : next_); }
  /// One above the highest place in use, or ever handed out.
  uint64_t next() const { return next_; }
  /// Something was handed out, or the file has grown.
  bool touched() const { return touched_; }
  /// The file was changed before, so that tidying up at the end is worth it.
  void touch() { touched_ = true; }

  /// For Commit::Owner: what is so now will be durable; is.
  void freeze();
  void published();
  void restore() { frozen_.reset(); }

 private:
  Task<Result<>> reuse_holes();
  Task<Result<>> grow();
  Task<Result<>> settle();

  Node& file_;
  Header layout_;
  Options options_;
  std::function<Task<Result<>>()> barrier_;
  Turns turns_;
  uint64_t limit_;  // places that a disk of so many blocks can need
  uint64_t step_;   // in places
  uint64_t next_;
  const uint64_t first_;  // next_ when opened: holes lie below
  uint64_t grown_;
  uint64_t ready_ = 0;
  struct Hole {
    uint32_t first;
    uint32_t count;
  };
  std::vector<Hole> holes_;           // unused, contents unknown; the lowest last
  std::vector<uint32_t> zeroed_;      // unused, zeroed
  std::set<uint32_t> unready_holes_;  // zeroed, not known to be durable; used ones too
  uint64_t rounds_ = 0;               // of make_room() that have ended well
  bool settled_ = false;              // a barrier has passed since the image was opened
  bool touched_ = false;
  struct Frozen {
    uint64_t ready;
    std::set<uint32_t> holes;
  };
  std::optional<Frozen> frozen_;
};

}  // namespace spindle::vdi
