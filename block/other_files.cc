#include "block/other_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>

#include "block/protocols/file_name.h"
#include "block/protocols/file_probe.h"

namespace spindle {
namespace {

constexpr std::size_t kHeadBytes = 512;
constexpr std::size_t kMostNamed = 8;

// "a -> b -> c", the disk's own image first; long chains without their middle.
std::string chain_text(const ChainLink* last, const std::string& next) {
  std::vector<std::string> names = {next};
  for (const ChainLink* link = last; link; link = link->above) names.insert(names.begin(), link->name);
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names.size() > kMostNamed && i == kMostNamed / 2) {
      i = names.size() - kMostNamed / 2;
      text += " -> ...";
    }
    text += (text.empty() ? "" : " -> ") + names[i];
  }
  return text;
}

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == path.npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

Result<std::string> probe_file(const std::string& path, const FormatRegistry& registry) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::unexpected(Error::from_errno(errno, "open", path));
  if (auto kind = kind_of_file(status, path); !kind) return std::unexpected(std::move(kind.error()));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::unexpected(Error::from_errno(errno, "open", path));
  std::array<std::byte, kHeadBytes> head;
  std::size_t filled = 0;
  ssize_t got = 1;
  while (filled < head.size() && got != 0) {
    got = ::pread(fd, head.data() + filled, head.size() - filled, static_cast<off_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      Error error = Error::from_errno(errno, "read", path);
      ::close(fd);
      return std::unexpected(std::move(error));
    }
    filled += static_cast<std::size_t>(got);
  }
  ::close(fd);
  for (const auto& [name, format] : registry.all()) {
    if (format.probe && format.probe(std::span(head).first(filled))) return name;
  }
  return "raw";
}

Result<ChainLink> next_link(const std::string& file, const ChainLink* above) {
  auto name = parse_file_name(file);
  if (!name) return std::unexpected(std::move(name.error()));
  ChainLink link{.above = above, .name = file, .depth = above ? above->depth + 1 : 0};
  struct stat status {};
  if (name->protocol == Protocol::File && ::stat(name->path.c_str(), &status) == 0) {
    link.is_file = true;
    link.device = status.st_dev;
    link.inode = status.st_ino;
  }
  for (const ChainLink* other = above; other && link.is_file; other = other->above) {
    if (other->is_file && other->device == link.device && other->inode == link.inode) {
      return std::unexpected(Error{.kind = ErrorKind::Corrupt,
                                   .operation = "open",
                                   .node = file,
                                   .detail = "the image would lie below itself: " + chain_text(above, file)});
    }
  }
  if (link.depth > kLongestChain) {
    return std::unexpected(
        Error{.kind = ErrorKind::NotSupported,
              .operation = "open",
              .node = file,
              .detail = fmt::format("more than {} images would lie below one another: {}; commit or rebase "
                                    "some of them",
                                    kLongestChain, chain_text(above, file))});
  }
  return link;
}

// Links are followed first: a name in the same directory may lead anywhere.
Result<> ChainFiles::may_open(const std::string& file, const char* what, FilesFrom where) const {
  if (where == FilesFrom::Anywhere) return {};
  auto name = parse_file_name(file);
  if (!name) return std::unexpected(std::move(name.error()));
  if (name->protocol == Protocol::Null) return {};
  std::string why;
  if (where == FilesFrom::Nowhere) {
    why = fmt::format("the image names it as its {}, which {} does not allow", what,
                      spec_.other_files ? "other-files=off" : "a disk by itself");
  } else {
    auto own = parse_file_name(spec_.file);
    if (!own) return std::unexpected(std::move(own.error()));
    std::error_code failed, failed_too;
    const auto allowed = std::filesystem::canonical(directory_of(own->path), failed);
    const auto target = std::filesystem::weakly_canonical(name->path, failed_too);
    if (!failed && !failed_too && target.parent_path() == allowed) return {};
    why = fmt::format("the image names it as its {}, and it lies outside the image's own directory", what);
  }
  return std::unexpected(
      Error{.kind = ErrorKind::Permission,
            .operation = "open",
            .node = file,
            .detail = fmt::format("{}; if you trust {} say other-files=on", why, spec_.file)});
}

Result<std::string> ChainFiles::backing_format(const OtherFile& file, const MeantFile& meant) const {
  std::optional<std::string> format = spec_.backing_format;
  if (!format) format = meant.format;
  if (!format) format = file.format;
  // How QEMU calls a file below a format, and old headers their raw backing.
  if (format == "file" || format == "host_device") format = "raw";
  if (format) {
    if (registry_.find(*format)) return *format;
    return std::unexpected(
        Error{.kind = ErrorKind::NotSupported,
              .operation = "open",
              .node = meant.file,
              .detail = fmt::format("{} says that its backing file is of format \"{}\"; there are {}",
                                    spec_.file, *format, registry_.names())});
  }
  auto name = parse_file_name(meant.file);
  if (!name) return std::unexpected(std::move(name.error()));
  if (name->protocol != Protocol::File) return "raw";
  auto probed = probe_file(name->path, registry_);
  if (!probed || *probed == "raw") return probed;
  return std::unexpected(Error::invalid(
      "open", meant.file,
      fmt::format("{} does not say of which format its backing file is, and it looks like {}: a guest could "
                  "have written that. Say backing-format={} if you know, or raw",
                  spec_.file, *probed, *probed)));
}

DiskSpec ChainFiles::spec_below(std::string file, std::string format) const {
  DiskSpec below;
  below.file = std::move(file);
  below.format = std::move(format);
  below.cache = spec_.cache;
  below.locking = spec_.locking;
  below.drop_cache = spec_.drop_cache;
  below.other_files = spec_.other_files;
  below.data_files = spec_.data_files;
  below.whole_sectors = false;
  return below;
}

Task<Result<std::shared_ptr<Node>>> ChainFiles::open_backing(OtherFile file) {
  if (!spec_.backing) co_return std::shared_ptr<Node>();
  auto meant = meant_file(spec_.file, file.name);
  if (!meant) co_return std::unexpected(std::move(meant.error()));
  SPINDLE_CO_TRY(may_open(meant->file, "backing file", spec_.other_files.value_or(FilesFrom::Anywhere)));
  auto format = backing_format(file, *meant);
  if (!format) co_return std::unexpected(std::move(format.error()));
  DiskSpec below = spec_below(std::move(meant->file), std::move(*format));
  below.read_only = true;
  auto opening = open_graph_(below, &link_);
  co_return co_await opening;
}

Task<Result<std::shared_ptr<Node>>> ChainFiles::open_data_file(OtherFile file) {
  DiskSpec data = spec_below(spec_.data_file, "raw");
  if (data.file.empty()) {
    auto meant = meant_file(spec_.file, file.name);
    if (!meant) co_return std::unexpected(std::move(meant.error()));
    SPINDLE_CO_TRY(may_open(meant->file, "data file", spec_.other_files.value_or(spec_.data_files)));
    data.file = std::move(meant->file);
  }
  if (!spec_.record.empty()) {
    co_return std::unexpected(
        Error{.kind = ErrorKind::NotSupported,
              .operation = "open",
              .node = data.file,
              .detail = "record= logs one file, and this image keeps its data in another; leave it out"});
  }
  // The data of two images, or tables and data, would overwrite each other.
  auto link = next_link(data.file, &link_);
  if (!link) co_return std::unexpected(std::move(link.error()));
  data.read_only = spec_.read_only;
  data.volatile_filter = spec_.volatile_filter;
  data.volatile_max = spec_.volatile_max;
  co_return open_data_(data);
}

}  // namespace spindle
