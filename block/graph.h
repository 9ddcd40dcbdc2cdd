// Opening a disk's graph of nodes from its description: protocol at the bottom, filters, format on top.
//
//   Disk -> throttle -> copy-on-read -> format -> fault -> volatile -> trace -> record -> protocol
//
// copy-on-read, fault, volatile and record are there if they were asked for. A format whose image names other
// files gets each through a graph of its own (other_files.h).
//
// The throttle is always there, since limits may be set at any time; without limits it hands on (its file has
// why it is on top). So is the trace, since one may be recorded at any time.
//
// The fault filter sits above volatile, so the n-th operation it counts is the n-th that the format asked
// for, and an operation it fails never reached volatile's memory.
//
// block/ does not know which formats exist: they register in a FormatRegistry. Nothing is probed: a disk's
// format is what its description says, raw if it says nothing, since what a guest wrote to a raw disk may
// look like any format.
//
// Threading: registries are filled before the first open and only read afterwards; open_graph runs on the
// reactor the graph will live on.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "block/disk_spec.h"
#include "block/format_registry.h"
#include "block/node.h"

namespace spindle {

/// Opens all nodes of `spec` and returns the top one, ready for a Disk. Locks the file. Pushes one line each
/// to `warnings` for what the user should be told. On an error everything opened so far is closed again.
Task<Result<std::shared_ptr<Node>>> open_graph(Reactor& reactor, const DiskSpec& spec,
                                               const FormatRegistry& registry,
                                               std::vector<std::string>& warnings);

/// Host operations of the whole graph below `top`, added up.
ProtocolCounters protocol_counters_below(const Node& top);

}  // namespace spindle
