// qcow2 as the registry knows it.
#pragma once

#include "block/format_registry.h"
#include "formats/qcow2/mutation.h"

namespace spindle::qcow2 {

/// `mutations`: orders that are wrong on purpose, for tests.
Format format(Mutations mutations = {});

}  // namespace spindle::qcow2
