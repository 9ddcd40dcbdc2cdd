// What a name in an image's header means (other_files.h).
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "block/other_files.h"
#include "block/protocols/file_name.h"

namespace spindle {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kJsonPrefix = "json:";
constexpr std::size_t kLongestName = 64 << 10;

Error not_understood(const std::string& name, std::string detail) {
  return Error{.kind = ErrorKind::NotSupported,
               .operation = "open",
               .node = name,
               .detail = std::move(detail) + "; a json: name may give driver and file.filename"};
}

// {"driver": "file", "filename": NAME}, or one of a format whose "file" is such an object.
Result<> read_object(const std::string& name, const Json& object, const std::string& prefix,
                     MeantFile& meant) {
  for (const auto& [key, value] : object.items()) {
    const std::string full = prefix + key;
    if (full == "file" && value.is_object()) {
      SPINDLE_TRY(read_object(name, value, "file.", meant));
      continue;
    }
    if (!value.is_string())
      return std::unexpected(not_understood(name, fmt::format("\"{}\" is no string", full)));
    const auto text = value.get<std::string>();
    if (full == "driver" && text != "file") {
      meant.format = text;
    } else if (full == "filename" || full == "file.filename") {
      if (!meant.file.empty()) return std::unexpected(not_understood(name, "it names two files"));
      meant.file = text;
    } else if (full != "driver" && !(full == "file.driver" && text == "file")) {
      return std::unexpected(not_understood(name, fmt::format("\"{}\" is unknown here", full)));
    }
  }
  return {};
}

Result<MeantFile> from_json(const std::string& name) {
  const Json object = Json::parse(name.begin() + kJsonPrefix.size(), name.end(), nullptr, false);
  if (!object.is_object()) return std::unexpected(not_understood(name, "what follows is no JSON object"));
  MeantFile meant;
  SPINDLE_TRY(read_object(name, object, "", meant));
  if (meant.file.empty()) return std::unexpected(not_understood(name, "it names no file"));
  if (meant.file.find('\0') != meant.file.npos)
    return std::unexpected(Error::invalid("open", name, "the file's name holds a zero byte"));
  // A "filename" is a path, whatever characters it has.
  if (!meant.file.starts_with("file:")) meant.file = "file:" + meant.file;
  return meant;
}

}  // namespace

Result<MeantFile> meant_file(const std::string& overlay, const std::string& name) {
  if (name.empty() || name.size() > kLongestName || name.find('\0') != name.npos) {
    return std::unexpected(Error{.kind = ErrorKind::Corrupt,
                                 .operation = "open",
                                 .node = overlay,
                                 .detail = "the image names another file, and that name is impossible"});
  }
  if (name.starts_with(kJsonPrefix)) return from_json(name);
  const auto colon = name.find(':');
  const bool has_protocol = colon != name.npos && name.find('/') > colon;
  if (has_protocol) {
    auto parsed = parse_file_name(name);
    if (!parsed) return std::unexpected(std::move(parsed.error()));
    return MeantFile{.file = name};
  }
  if (name.starts_with('/')) return MeantFile{.file = name};
  auto own = parse_file_name(overlay);
  if (!own) return std::unexpected(std::move(own.error()));
  const auto slash = own->path.rfind('/');
  if (slash == own->path.npos) return MeantFile{.file = name};
  // A directory's name may hold a colon before its first slash.
  const std::string path = own->path.substr(0, slash + 1) + name;
  const auto path_colon = path.find(':');
  const bool ambiguous = path_colon != path.npos && path.find('/') > path_colon;
  return MeantFile{.file = ambiguous ? "file:" + path : path};
}

}  // namespace spindle
