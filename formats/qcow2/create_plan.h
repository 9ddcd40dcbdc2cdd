// What create was asked for, and where each part of the new image goes.
//
// The parts lie one after the other: header, refcount table, refcount blocks, L1 table, and, if they are
// preallocated, L2 tables and data. So the clusters in use are the first ones, each once.
#pragma once

#include <cstdint>

#include "block/format_registry.h"
#include "formats/qcow2/header.h"

namespace spindle::qcow2 {

enum class Preallocation : uint8_t { Off, Metadata, Falloc, Full };

struct CreatePlan {
  Header header;
  Preallocation preallocation = Preallocation::Off;
  /// In clusters.
  uint64_t refcount_blocks = 0;
  uint64_t l1_clusters = 0;
  uint64_t l2_tables = 0;
  uint64_t data_clusters = 0;  ///< in this file
  uint64_t total_clusters = 0;

  uint64_t refcount_blocks_at() const { return 1 + uint64_t{header.refcount_table_clusters}; }
  uint64_t l1_at() const { return refcount_blocks_at() + refcount_blocks; }
  uint64_t l2_at() const { return l1_at() + l1_clusters; }
  uint64_t data_at() const { return l2_at() + l2_tables; }
  uint64_t bytes(uint64_t clusters) const { return clusters << header.layout.cluster_bits; }
};

/// Invalid or NotSupported for what qcow2, or this program, cannot do, by the option's name.
Result<CreatePlan> plan_image(const CreateOptions& options, const std::string& name);

std::vector<CreateOptionHelp> create_option_help();

/// Format::measure.
Result<Measure> measure(const CreateOptions& options, const std::function<uint64_t(uint64_t)>& data_clusters);

}  // namespace spindle::qcow2
