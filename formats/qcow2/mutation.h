// The edges of qcow2's own order, each of which tests leave out on purpose, one at a time, to prove that it
// would be noticed. Never set outside tests.
#pragma once

#include <cstdint>

#include "formats/commit/commit.h"
#include "formats/qcow2/node_mutation.h"

namespace spindle::qcow2 {

/// Of work on a whole image that no guest uses.
enum class ImageMutation : uint8_t {
  None,
  SwitchBeforeCounts,     ///< the header points to new refcount blocks before they are durable
  BitsClearedBeforeRest,  ///< dirty and corrupt bits are cleared before the repair is durable
};

struct Mutations {
  ImageMutation image = ImageMutation::None;
  CommitMutation commit = CommitMutation::None;
  NodeMutation node = NodeMutation::None;
};

}  // namespace spindle::qcow2
