#include "image/create.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "block/parse.h"
#include "block/protocols/file_name.h"

namespace spindle::image {
namespace {

Error create_error(int number, const std::string& path) {
  return Error::from_errno(number, "create", path);
}

Result<std::string> path_of(const std::string& name) {
  auto parsed = parse_file_name(name);
  if (!parsed) return std::unexpected(std::move(parsed.error()));
  if (parsed->protocol != Protocol::File) {
    return std::unexpected(Error{.kind = ErrorKind::NotSupported,
                                 .operation = "create",
                                 .node = name,
                                 .detail = "only a file or a block device can hold an image"});
  }
  return parsed->path;
}

Result<> sync_directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  const std::string directory = slash == path.npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return std::unexpected(Error::from_errno(errno, "open", directory));
  const int number = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // EINVAL: a file system without anything to sync in a directory.
  if (number != 0 && number != EINVAL)
    return std::unexpected(Error::from_errno(number, "sync the directory", directory));
  return {};
}

}  // namespace

Result<NewFile> NewFile::make(const std::string& name) {
  auto path = path_of(name);
  if (!path) return std::unexpected(std::move(path.error()));
  NewFile file(*path);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY;
  int fd = ::open(path->c_str(), kFlags | O_EXCL, 0644);
  if (fd >= 0) {
    file.made_ = true;
  } else if (errno != EEXIST) {
    return std::unexpected(create_error(errno, *path));
  } else if (struct stat status{}; ::stat(path->c_str(), &status) != 0) {
    // A link to a file that is not there: the file it names is made, and not removed again.
    fd = ::open(path->c_str(), kFlags, 0644);
    if (fd < 0) return std::unexpected(create_error(errno, *path));
  }
  if (fd >= 0) ::close(fd);
  return file;
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)), made_(std::exchange(other.made_, false)) {}

NewFile::~NewFile() {
  if (made_) ::unlink(path_.c_str());
}

Result<> NewFile::keep(bool durable) {
  if (made_ && durable) SPINDLE_TRY(sync_directory_of(path_));
  made_ = false;
  return {};
}

bool same_file(const std::string& one, const std::string& other) {
  const auto first = parse_file_name(one), second = parse_file_name(other);
  struct stat a {
  }, b{};
  if (!first || !second || ::stat(first->path.c_str(), &a) != 0 || ::stat(second->path.c_str(), &b) != 0)
    return false;
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

Result<uint64_t> parse_image_size(const std::string& text) {
  if (const auto bytes = parse_size(text)) return *bytes;
  return std::unexpected(Error::invalid(
      "size " + text, "",
      "not a size from 0 to 9223372036854775807 bytes; it may have a suffix k, M, G, T, P or E (k = 1024)"));
}

Result<CreateList> parse_create_options(const Format& format, const std::vector<std::string>& lists) {
  CreateList found;
  for (const std::string& list : lists) {
    for (const auto& [key, value] : split_key_values(list)) {
      if (!value && (key == "help" || key == "?")) {
        found.help = true;
        continue;
      }
      if (key == "size" && value) {
        auto size = parse_image_size(*value);
        if (!size) return std::unexpected(std::move(size.error()));
        found.size = *size;
        continue;
      }
      const bool known = std::ranges::any_of(
          format.create_options, [&](const CreateOptionHelp& option) { return option.key == key; });
      if (!known || !value) {
        return std::unexpected(Error::invalid(
            "-o " + list, "",
            known
                ? fmt::format("\"{}\" needs a value: write {}=VALUE", key, key)
                : fmt::format("the format {} has no option \"{}\"; `-o help` lists them", format.name, key)));
      }
      found.options.insert_or_assign(key, *value);
    }
  }
  return found;
}

std::string create_help(const Format& format) {
  std::vector<CreateOptionHelp> options = format.create_options;
  options.push_back({.key = "size", .value = "<size>", .help = "Virtual disk size"});
  std::ranges::sort(options, {}, &CreateOptionHelp::key);
  std::string text = fmt::format("Supported {} options:\n", format.name);
  for (const CreateOptionHelp& option : options)
    text += fmt::format("  {:<22} - {}\n", option.key + "=" + option.value, option.help);
  return text;
}

std::string formatting_line(const std::string& file, const Format& format, const CreateOptions& options) {
  std::string line = fmt::format("Formatting '{}', fmt={} size={}", file, format.name, options.size);
  for (const CreateOptionHelp& option : format.create_options) {
    const auto given = options.options.find(option.key);
    const bool is_switch = option.value.starts_with("<bool");
    if (given != options.options.end()) {
      line += fmt::format(" {}={}", option.key, given->second);
    } else if (!option.initial.empty()) {
      line += fmt::format(" {}={}", option.key, option.initial);
    } else if (is_switch) {
      line += fmt::format(" {}=off", option.key);
    }
  }
  return line + "\n";
}

Result<const Format*> format_to_create(const FormatRegistry& formats, const std::string& name) {
  const Format* format = formats.find(name);
  if (format && format->create) return format;
  std::string able;
  for (const auto& [other_name, other] : formats.all()) {
    if (other.create) able += (able.empty() ? "" : ", ") + other_name;
  }
  return std::unexpected(
      Error::invalid("create", "",
                     format ? fmt::format("images of the format {} cannot be made; there are {}", name, able)
                            : fmt::format("there is no format \"{}\"; there are {}", name, able)));
}

Result<std::shared_ptr<Node>> open_to_format(const Workshop& shop, const Format& format,
                                             const std::string& name, CacheMode cache) {
  DiskSpec spec;
  spec.file = name;
  spec.format = format.name;
  spec.cache = cache;
  return open_file(shop, spec);
}

Task<Result<>> format_file(const Format& format, std::shared_ptr<Node> file, CreateOptions options) {
  auto creating = format.create(file, std::move(options));
  auto result = co_await creating;
  auto closed = co_await file->close();
  if (result && !closed) co_return closed;
  co_return result;
}

Task<Result<>> create_image(const Workshop& shop, const Format& format, std::string name,
                            CreateOptions options, CacheMode cache) {
  auto file = NewFile::make(name);
  if (!file) co_return std::unexpected(std::move(file.error()));
  auto node = open_to_format(shop, format, name, cache);
  if (!node) co_return std::unexpected(std::move(node.error()));
  auto formatting = format_file(format, std::move(*node), std::move(options));
  auto formatted = co_await formatting;
  if (!formatted) co_return formatted;
  co_return file->keep(!never_flushes(cache));
}

}  // namespace spindle::image
