// vdi as the registry knows it.
#pragma once

#include "block/format_registry.h"
#include "formats/commit/commit.h"
#include "formats/vdi/mutation.h"

namespace spindle::vdi {

/// Orders that are wrong on purpose, for tests.
struct Mutations {
  CommitMutation commit = CommitMutation::None;
  Mutation vdi = Mutation::None;
};

Format format(Mutations mutations = {});

}  // namespace spindle::vdi
