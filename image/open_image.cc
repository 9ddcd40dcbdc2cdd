#include "image/open_image.h"

#include <fmt/format.h>

#include <map>

#include "block/graph.h"
#include "block/other_files.h"
#include "block/protocols/file_name.h"
#include "block/protocols/file_node.h"

namespace spindle::image {
namespace {

// How QEMU's block options call what a disk option calls otherwise.
const std::map<std::string, std::string, std::less<>>& spellings() {
  static const std::map<std::string, std::string, std::less<>> table = {
      {"driver", "format"},
      {"file.filename", "file"},
      {"filename", "file"},
      {"file.locking", "locking"},
      {"read-only", "readonly"},
      {"file.fault", "fault"},
      {"file.drop-cache", "drop-cache"},
      {"data-file.filename", "data-file"},
      {"backing.driver", "backing-format"},
  };
  return table;
}

std::string with_double_commas(std::string_view text) {
  std::string doubled;
  for (const char c : text) doubled.append(c == ',' ? 2 : 1, c);
  return doubled;
}

// The list in the words of disk options.
Result<std::string> as_disk_options(const std::string& text, bool& has_format, std::string& file) {
  std::string list;
  bool first = true;
  for (const auto& [key, value] : split_key_values(text)) {
    if (key == "file.driver" || key == "driver" || key == "format") {
      if (key == "file.driver" && value == "file") continue;
      if (key == "file.driver") return std::unexpected(bad_option(key, value.value_or(""), "file"));
      has_format = true;
    }
    const auto spelling = spellings().find(key);
    const std::string& name = spelling == spellings().end() ? key : spelling->second;
    if (name == "file" && value) file = *value;
    if (!first) list += ',';
    first = false;
    list += with_double_commas(name);
    if (value) list += "=" + with_double_commas(*value);
  }
  return list;
}

Result<DiskSpec> from_options(const Workshop& shop, const ImageName& name) {
  bool has_format = false;
  std::string file;
  auto list = as_disk_options(name.text, has_format, file);
  if (!list) return std::unexpected(std::move(list.error()));
  if (!has_format && !file.empty()) {
    auto format = probe_format(shop, file);
    if (!format) return std::unexpected(std::move(format.error()));
    *list += ",format=" + *format;
  }
  return parse_disk_spec(*list, shop.formats);
}

Result<DiskSpec> from_name(const Workshop& shop, const ImageName& name) {
  auto parsed = parse_file_name(name.text);
  if (!parsed) return std::unexpected(std::move(parsed.error()));
  DiskSpec spec;
  spec.file = name.text;
  if (name.format) {
    if (!shop.formats.find(*name.format))
      return std::unexpected(Error::invalid(
          "open", name.text,
          fmt::format("there is no format \"{}\"; there are {}", *name.format, shop.formats.names())));
    spec.format = *name.format;
  }
  return spec;
}

}  // namespace

Result<std::string> probe_format(const Workshop& shop, const std::string& file) {
  auto name = parse_file_name(file);
  if (!name) return std::unexpected(std::move(name.error()));
  if (name->protocol != Protocol::File) return "raw";
  return probe_file(name->path, shop.formats);
}

Result<DiskSpec> describe_image(const Workshop& shop, const ImageName& name, const OpenMode& mode) {
  if (name.options && name.format) {
    return std::unexpected(Error::invalid(
        "--image-opts", "", "the list says the format itself, as driver=; leave -f out, or --image-opts"));
  }
  auto spec = name.options ? from_options(shop, name) : from_name(shop, name);
  if (!spec) return spec;
  if (!name.options && !name.format) {
    auto format = probe_format(shop, name.text);
    if (!format) return std::unexpected(std::move(format.error()));
    spec->format = *format;
    if (mode.write && *format == "raw" && name.text != kNullPrefix) {
      shop.notes.push_back(
          fmt::format("{}: no format was given and nothing in it tells of one, so it is taken for raw; say "
                      "so with -f raw",
                      name.text));
    }
  }
  if (mode.force_share && mode.write) {
    return std::unexpected(
        Error::invalid("-U", "", "an image that others may use can only be read: leave -U out"));
  }
  spec->read_only |= !mode.write;
  if (mode.cache) spec->cache = *mode.cache;
  if (mode.force_share) spec->locking = LockPolicy::Off;
  if (!name.options) spec->discard = mode.unmap;
  if (!mode.drop_cache) spec->drop_cache = false;
  spec->whole_sectors = false;
  spec->data_files = FilesFrom::SameDirectory;
  spec->id = spec->file;
  return spec;
}

Task<Result<std::unique_ptr<Disk>>> open_disk(const Workshop& shop, DiskSpec spec) {
  auto opening = open_graph(shop.reactor, spec, shop.formats, shop.notes);
  auto top = co_await opening;
  if (!top) co_return std::unexpected(std::move(top.error()));
  co_return std::make_unique<Disk>(std::move(*top), disk_options(spec));
}

Task<Result<std::unique_ptr<Disk>>> open_image(const Workshop& shop, ImageName name, OpenMode mode) {
  auto spec = describe_image(shop, name, mode);
  if (!spec) co_return std::unexpected(std::move(spec.error()));
  auto opening = open_disk(shop, std::move(*spec));
  co_return co_await opening;
}

Result<std::shared_ptr<Node>> open_file(const Workshop& shop, const DiskSpec& spec) {
  auto name = parse_file_name(spec.file);
  if (!name) return std::unexpected(std::move(name.error()));
  if (name->protocol != Protocol::File) {
    return std::unexpected(Error{.kind = ErrorKind::NotSupported,
                                 .operation = "open",
                                 .node = spec.file,
                                 .detail = "this needs an image in a file or on a block device"});
  }
  const Format* format = shop.formats.find(spec.format);
  auto node = FileNode::open(shop.reactor,
                             {
                                 .path = name->path,
                                 .read_only = spec.read_only,
                                 .direct = is_direct(spec.cache),
                                 .never_flush = never_flushes(spec.cache),
                                 .drop_cache = spec.drop_cache,
                                 .grows = format != nullptr && format->grows,
                                 .locking = spec.locking,
                                 .warn = [&shop](std::string line) { shop.notes.push_back(std::move(line)); },
                             });
  if (!node) return std::unexpected(std::move(node.error()));
  return std::shared_ptr<Node>(std::move(*node));
}

Result<CacheMode> cache_mode_of(const std::string& option, const std::string& value) {
  const auto mode = parse_cache_mode(value);
  if (!mode) {
    return std::unexpected(Error::invalid(
        option, "",
        fmt::format("\"{}\" is no cache mode; there are writeback, none, writethrough, directsync and unsafe",
                    value)));
  }
  return *mode;
}

}  // namespace spindle::image
