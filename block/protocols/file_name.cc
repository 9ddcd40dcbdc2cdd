#include "block/protocols/file_name.h"

#include <fmt/format.h>

namespace spindle {

Result<FileName> parse_file_name(std::string_view name) {
  if (name.starts_with(kNullPrefix)) {
    if (name == kNullPrefix) return FileName{.protocol = Protocol::Null, .path = ""};
    return std::unexpected(
        Error::invalid("open", std::string(name), "null-co:// takes no name; its size is size="));
  }
  constexpr std::string_view kFilePrefix = "file:";
  if (name.starts_with(kFilePrefix)) {
    name.remove_prefix(kFilePrefix.size());
  } else if (const auto colon = name.find(':'); colon != name.npos && name.find('/') > colon) {
    return std::unexpected(Error::invalid(
        "open", std::string(name),
        fmt::format("there is no protocol \"{}\"; if this is a file's name write file:{} or ./{}",
                    name.substr(0, colon), name, name)));
  }
  if (name.empty()) return std::unexpected(Error::invalid("open", "", "the file has no name"));
  return FileName{.protocol = Protocol::File, .path = std::string(name)};
}

}  // namespace spindle
