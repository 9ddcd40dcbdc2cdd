#include "block/graph.h"

#include <fmt/format.h>

#include <filesystem>

#include "block/filters/copy_on_read_node.h"
#include "block/filters/fault_node.h"
#include "block/filters/null_node.h"
#include "block/filters/throttle_node.h"
#include "block/filters/trace_node.h"
#include "block/filters/volatile_node.h"
#include "block/other_files.h"
#include "block/protocols/file_name.h"
#include "block/protocols/file_node.h"
#include "block/record/record_node.h"

namespace spindle {
namespace {

constexpr uint64_t kSector = 512;

Result<std::shared_ptr<Node>> open_protocol(Reactor& reactor, const DiskSpec& spec, const Format& format,
                                            std::vector<std::string>& warnings) {
  auto name = parse_file_name(spec.file);
  if (!name) return std::unexpected(std::move(name.error()));
  std::error_code not_there;
  if (!spec.record.empty() && std::filesystem::equivalent(name->path, spec.record, not_there)) {
    return std::unexpected(
        Error::invalid("record to", spec.record, "this is the image itself; choose another file"));
  }
  if (name->protocol == Protocol::Null) {
    NullNode::Options options;
    if (spec.null_size) options.size = *spec.null_size;
    options.read_zeroes = spec.null_read_zeroes;
    options.read_only = spec.read_only;
    return std::make_shared<NullNode>(reactor, options);
  }
  auto node = FileNode::open(
      reactor, {
                   .path = name->path,
                   .read_only = spec.read_only,
                   .direct = is_direct(spec.cache),
                   .never_flush = never_flushes(spec.cache),
                   .drop_cache = spec.drop_cache,
                   .grows = format.grows,
                   .locking = spec.locking,
                   .warn = [&warnings](std::string line) { warnings.push_back(std::move(line)); },
               });
  if (!node) return std::unexpected(std::move(node.error()));
  return std::shared_ptr<Node>(std::move(*node));
}

// A disk has whole sectors, and at least one.
Result<> check_size(const Node& top, const DiskSpec& spec) {
  const uint64_t size = top.size();
  if (!spec.whole_sectors) return {};
  if (size != 0 && size % kSector == 0) return {};
  std::string text = fmt::format("its size of {} bytes is {}; a disk needs whole sectors of 512: ", size,
                                 size == 0 ? "nothing" : "no multiple of 512");
  // The advice must be safe to follow: where a window was asked for, the file is not what is wrong.
  if (!spec.format_options.empty() || spec.null_size) {
    text += "give another size= or offset=";
  } else if (size == 0) {
    text += fmt::format("make it longer, as with truncate -s 1G {}", spec.file);
  } else {
    text += fmt::format("make it longer, as with truncate -s +{} {}", kSector - size % kSector, spec.file);
  }
  return std::unexpected(Error::invalid("open", spec.file, std::move(text)));
}

// What lies around the file of an image or of its data, the record apart.
std::shared_ptr<Node> around_file(std::shared_ptr<Node> node, const DiskSpec& spec) {
  node = std::make_shared<TraceNode>(std::move(node));
  if (!spec.volatile_filter) return node;
  return std::make_shared<VolatileNode>(std::move(node),
                                        VolatileNode::Options{.max_bytes = spec.volatile_max});
}

Result<std::shared_ptr<Node>> open_data(Reactor& reactor, const DiskSpec& spec, const Format& format,
                                        std::vector<std::string>& warnings) {
  auto protocol = open_protocol(reactor, spec, format, warnings);
  if (!protocol) return protocol;
  return around_file(std::move(*protocol), spec);
}

Task<Result<std::shared_ptr<Node>>> open_below(Reactor& reactor, const DiskSpec& spec,
                                               const FormatRegistry& registry,
                                               std::vector<std::string>& warnings, const ChainLink* above) {
  const Format* format = registry.find(spec.format);
  if (!format) co_return std::unexpected(bad_option("format", spec.format, registry.names()));
  if (never_flushes(spec.cache) && !above) {
    warnings.push_back(
        fmt::format("{}: cache=unsafe never flushes to the host: all that was written may be lost or mixed "
                    "up by a host crash",
                    spec.file));
  }
  if (spec.copy_on_read && spec.read_only) {
    co_return std::unexpected(Error{.kind = ErrorKind::ReadOnly,
                                    .operation = "open",
                                    .node = spec.file,
                                    .detail = "copy-on-read=on writes to the image; open it writable"});
  }
  auto link = next_link(spec.file, above);
  if (!link) co_return std::unexpected(std::move(link.error()));
  auto protocol = open_protocol(reactor, spec, *format, warnings);
  if (!protocol) co_return std::unexpected(std::move(protocol.error()));
  std::shared_ptr<Node> node = std::move(*protocol);
  if (!spec.record.empty()) {
    auto recording = RecordNode::open(node, spec.record);
    auto recorder = co_await recording;
    if (!recorder) {
      static_cast<void>(co_await node->close());  // the first error is the one to tell
      co_return recorder;
    }
    node = std::move(*recorder);
  }
  node = around_file(std::move(node), spec);
  if (!spec.faults.empty()) node = std::make_shared<FaultNode>(std::move(node), spec.faults);

  ChainFiles others(
      spec, *link, registry,
      [&](const DiskSpec& below, const ChainLink* image) {
        return open_below(reactor, below, registry, warnings, image);
      },
      [&](const DiskSpec& data) { return open_data(reactor, data, *format, warnings); });
  auto opening = format->open(node, OpenOptions{.options = spec.format_options, .others = &others});
  auto top = co_await opening;
  if (!top) {
    static_cast<void>(co_await node->close());  // the first error is the one to tell
    co_return top;
  }
  if (auto sized = check_size(**top, spec); !sized) {
    static_cast<void>(co_await (*top)->close());
    co_return std::unexpected(std::move(sized.error()));
  }
  if (spec.copy_on_read) *top = std::make_shared<CopyOnReadNode>(std::move(*top));
  std::shared_ptr<Node> throttle = std::make_shared<ThrottleNode>(std::move(*top), spec.throttling);
  throttle->sequencer().set_elision(spec.flush_elision);
  co_return throttle;
}

}  // namespace

Task<Result<std::shared_ptr<Node>>> open_graph(Reactor& reactor, const DiskSpec& spec,
                                               const FormatRegistry& registry,
                                               std::vector<std::string>& warnings) {
  return open_below(reactor, spec, registry, warnings, nullptr);
}

ProtocolCounters protocol_counters_below(const Node& top) {
  ProtocolCounters sum;
  for (const Node* node = &top; node; node = node->child()) {
    if (const ProtocolCounters* counters = node->protocol_counters()) sum += *counters;
    if (const Node* backing = node->backing()) sum += protocol_counters_below(*backing);
  }
  return sum;
}

}  // namespace spindle
