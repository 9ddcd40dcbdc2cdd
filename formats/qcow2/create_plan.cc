#include "formats/qcow2/create_plan.h"

#include <fmt/format.h>

#include <bit>

#include "block/parse.h"

namespace spindle::qcow2 {
namespace {

constexpr unsigned kDefaultRefcountOrder = 4;

std::unexpected<BoxedError> refuse(const std::string& name, std::string detail,
                                   ErrorKind kind = ErrorKind::Invalid) {
  Error error = Error::invalid("create", name, std::move(detail));
  error.kind = kind;
  return std::unexpected(BoxedError(std::move(error)));
}

// What was typed, before it is held against itself.
struct Wanted {
  Header header;
  Preallocation preallocation = Preallocation::Off;
  std::optional<OtherFile> backing;
  std::optional<std::string> data_file;
  bool data_raw = false;
};

Result<bool> switch_of(const std::string& key, const std::string& value) {
  const auto on = parse_on_off(value);
  if (!on) return std::unexpected(bad_option(key, value, "on or off"));
  return *on;
}

Result<> take_number(Wanted& wanted, const std::string& key, const std::string& value) {
  if (key == "cluster_size") {
    const auto bytes = parse_size(value);
    constexpr uint64_t kSmallest = 1 << kSmallestClusterBits, kLargest = 1 << kLargestClusterBits;
    if (!bytes || !std::has_single_bit(*bytes) || *bytes < kSmallest || *bytes > kLargest)
      return std::unexpected(bad_option(key, value, "a power of two from 512 to 2M"));
    wanted.header.layout.cluster_bits = static_cast<unsigned>(std::countr_zero(*bytes));
    return {};
  }
  const auto bits = parse_number(value);
  if (!bits || !std::has_single_bit(*bits) || *bits > 64)
    return std::unexpected(bad_option(key, value, "a power of two from 1 to 64"));
  wanted.header.layout.refcount_order = static_cast<unsigned>(std::countr_zero(*bits));
  return {};
}

Result<> take_word(Wanted& wanted, const std::string& key, const std::string& value) {
  if (key == "compat") {
    if (value != "0.10" && value != "v2" && value != "1.1" && value != "v3")
      return std::unexpected(bad_option(key, value, "0.10 (or v2) or 1.1 (or v3)"));
    wanted.header.version = value == "0.10" || value == "v2" ? 2 : 3;
  } else if (key == "compression_type") {
    if (value != "zlib" && value != "zstd") return std::unexpected(bad_option(key, value, "zlib or zstd"));
    wanted.header.compression = value == "zstd" ? Compression::Zstd : Compression::Zlib;
    if (value == "zstd") wanted.header.incompatible |= kCompressionType;
  } else {
    if (value == "metadata") {
      wanted.preallocation = Preallocation::Metadata;
    } else if (value == "falloc") {
      wanted.preallocation = Preallocation::Falloc;
    } else if (value == "full") {
      wanted.preallocation = Preallocation::Full;
    } else if (value != "off") {
      return std::unexpected(bad_option(key, value, "off, metadata, falloc or full"));
    }
  }
  return {};
}

Result<> take(Wanted& wanted, const std::string& key, const std::string& value) {
  if (key == "cluster_size" || key == "refcount_bits") return take_number(wanted, key, value);
  if (key == "compat" || key == "compression_type" || key == "preallocation")
    return take_word(wanted, key, value);
  if (key == "backing_file") {
    if (!wanted.backing) wanted.backing.emplace();
    wanted.backing->name = value;
    return {};
  }
  if (key == "backing_fmt") {
    if (!wanted.backing) wanted.backing.emplace();
    wanted.backing->format = value;
    return {};
  }
  if (key == "data_file") {
    wanted.data_file = value;
    return {};
  }
  if (key.starts_with("encrypt."))
    return refuse("", fmt::format("{}={}: encrypted images cannot be made here; leave it out", key, value),
                  ErrorKind::NotSupported);
  const auto on = switch_of(key, value);
  if (!on) return std::unexpected(on.error());
  if (key == "lazy_refcounts") {
    if (*on) wanted.header.compatible |= kLazyRefcounts;
  } else if (key == "extended_l2") {
    if (*on) wanted.header.incompatible |= kExtendedL2;
    wanted.header.layout.extended_l2 = *on;
  } else if (key == "data_file_raw") {
    wanted.data_raw = *on;
  } else if (key == "encryption") {
    if (*on)
      return refuse("", "encryption=on: encrypted images cannot be made here; leave it out",
                    ErrorKind::NotSupported);
  } else {
    return std::unexpected(bad_option(key, value, "no option of qcow2; `-o help` lists them"));
  }
  return {};
}

Result<> hold_against_each_other(const Wanted& wanted, const std::string& name) {
  const Header& header = wanted.header;
  if (header.version == 2) {
    const char* option = header.layout.refcount_order != kDefaultRefcountOrder ? "refcount_bits other than 16"
                         : (header.compatible & kLazyRefcounts) != 0           ? "lazy_refcounts"
                         : header.has(kExtendedL2)                             ? "extended_l2"
                         : header.compression != Compression::Zlib ? "compression_type other than zlib"
                         : wanted.data_file                        ? "data_file"
                                                                   : nullptr;
    if (option) return refuse(name, fmt::format("{} cannot be had with compat=0.10; use compat=1.1", option));
  }
  if (header.layout.extended_l2 && header.layout.cluster_bits < kSmallestExtendedClusterBits)
    return refuse(name, "extended_l2 needs a cluster_size of at least 16k");
  if (wanted.data_raw && !wanted.data_file) return refuse(name, "data_file_raw needs a data_file");
  if (wanted.data_raw && wanted.backing)
    return refuse(name, "a data file that is to stay raw cannot have a backing file: leave one of them out");
  if (wanted.backing && wanted.preallocation != Preallocation::Off && !header.layout.extended_l2)
    return refuse(name, "a backing file and preallocation go together with extended_l2=on only");
  if (wanted.backing && wanted.backing->name.empty())
    return refuse(name, "a format of the backing file is given, but no backing file");
  return {};
}

// Each refcount block counts itself too, so their number is found by turns; it only ever grows.
void place(CreatePlan& plan) {
  const Layout& layout = plan.header.layout;
  const uint64_t entries = layout.refcount_block_entries(), words = layout.cluster_size() / sizeof(uint64_t);
  const uint64_t rest = 1 + plan.l1_clusters + plan.l2_tables + plan.data_clusters;
  uint64_t blocks = 1, table = 1;
  for (;;) {
    const uint64_t total = rest + blocks + table;
    const uint64_t needed = (total + entries - 1) / entries, pages = (needed + words - 1) / words;
    if (needed == blocks && pages == table) break;
    blocks = needed;
    table = pages;
  }
  plan.refcount_blocks = blocks;
  plan.header.refcount_table_clusters = static_cast<uint32_t>(table);
  plan.total_clusters = rest + blocks + table;
}

Result<> lay_out(CreatePlan& plan, bool tables, bool data, const std::string& name) {
  Header& header = plan.header;
  const Layout& layout = header.layout;
  if (header.disk_size % kSector != 0)
    return refuse(name, fmt::format("its size of {} bytes is no multiple of 512", header.disk_size));
  const uint64_t entries = layout.l1_entries(header.disk_size);
  if (entries > kLargestL1Bytes / sizeof(uint64_t)) {
    return refuse(name, fmt::format("a disk of {} bytes is too large for clusters of {}; use a larger "
                                    "cluster_size, or a smaller disk",
                                    header.disk_size, layout.cluster_size()));
  }
  header.l1_entries = static_cast<uint32_t>(entries);
  plan.l1_clusters = layout.clusters(entries * sizeof(uint64_t));
  plan.l2_tables = tables ? entries : 0;
  plan.data_clusters = data ? layout.clusters(header.disk_size) : 0;
  place(plan);
  if (plan.bytes(header.refcount_table_clusters) > kLargestRefcountTableBytes) {
    return refuse(name,
                  fmt::format("a preallocated disk of {} bytes needs a refcount table larger than {}; use "
                              "a larger cluster_size, or smaller refcount_bits",
                              header.disk_size, kLargestRefcountTableBytes));
  }
  header.refcount_table_offset = plan.bytes(1);
  header.l1_offset = entries == 0 ? 0 : plan.bytes(plan.l1_at());
  return {};
}

Result<Wanted> parse(const CreateOptions& options, const std::string& name) {
  Wanted wanted;
  wanted.header.disk_size = options.size;
  wanted.backing = options.backing;
  for (const auto& [key, value] : options.options) SPINDLE_TRY(take(wanted, key, value));
  SPINDLE_TRY(hold_against_each_other(wanted, name));
  Header& header = wanted.header;
  if (wanted.backing) {
    header.backing = wanted.backing->name;
    header.set_text(ExtensionType::BackingFormat, wanted.backing->format);
  }
  if (wanted.data_file) {
    header.incompatible |= kExternalData;
    header.set_text(ExtensionType::DataFile, wanted.data_file);
    // A guest's cluster and its raw place are one from the start, or the file would not stay raw.
    if (wanted.data_raw) {
      header.autoclear |= kRawExternalData;
      if (wanted.preallocation == Preallocation::Off) wanted.preallocation = Preallocation::Metadata;
    }
  }
  if (header.version == 3) header.set_feature_names();
  return wanted;
}

}  // namespace

Result<CreatePlan> plan_image(const CreateOptions& options, const std::string& name) {
  auto wanted = parse(options, name);
  if (!wanted) return std::unexpected(std::move(wanted.error()));
  CreatePlan plan{.header = std::move(wanted->header), .preallocation = wanted->preallocation};
  const bool tables = plan.preallocation != Preallocation::Off;
  SPINDLE_TRY(lay_out(plan, tables, tables && !plan.header.has(kExternalData), name));
  return plan;
}

std::vector<CreateOptionHelp> create_option_help() {
  return {{"cluster_size", "<size>", "qcow2 cluster size", "65536"},
          {"extended_l2", "<bool (on/off)>", "Extended L2 tables"},
          {"preallocation", "<str>", "Preallocation mode (allowed values: off, metadata, falloc, full)"},
          {"compression_type", "<str>", "Compression of clusters (zlib or zstd)", "zlib"},
          {"backing_file", "<str>", "File name of a base image"},
          {"backing_fmt", "<str>", "Image format of the base image"},
          {"data_file", "<str>", "File name of an external data file"},
          {"data_file_raw", "<bool (on/off)>", "The external data file must stay valid as a raw image"},
          {"compat", "<str>", "Compatibility level (v2 [0.10] or v3 [1.1])"},
          {"lazy_refcounts", "<bool (on/off)>", "Postpone refcount updates"},
          {"refcount_bits", "<num>", "Width of a reference count entry in bits", "16"}};
}

Result<Measure> measure(const CreateOptions& options,
                        const std::function<uint64_t(uint64_t)>& data_clusters) {
  auto wanted = parse(options, "");
  if (!wanted) return std::unexpected(std::move(wanted.error()));
  CreatePlan plan{.header = std::move(wanted->header), .preallocation = wanted->preallocation};
  SPINDLE_TRY(lay_out(plan, true, true, ""));
  // The tables are counted for a full disk either way: how many a partly used one needs depends on where.
  const uint64_t metadata = plan.total_clusters - plan.data_clusters;
  const bool all = plan.preallocation == Preallocation::Falloc || plan.preallocation == Preallocation::Full;
  const uint64_t now = all ? plan.data_clusters : data_clusters(plan.header.layout.cluster_size());
  return Measure{.required = plan.bytes(metadata + now), .fully_allocated = plan.bytes(plan.total_clusters)};
}

}  // namespace spindle::qcow2
