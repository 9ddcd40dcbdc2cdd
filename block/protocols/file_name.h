// Which protocol a file's name asks for, by its prefix, as QEMU reads them.
//
//   null-co://     the null node
//   file:NAME      a file, whatever characters NAME holds
//   NAME           a file; but text before a first ':' with no '/' in it is a protocol, and an unknown one is
//   refused
#pragma once

#include <string>
#include <string_view>

#include "block/result.h"

namespace spindle {

inline constexpr std::string_view kNullPrefix = "null-co://";

enum class Protocol : uint8_t { File, Null };

struct FileName {
  Protocol protocol = Protocol::File;
  std::string path;  ///< of a File
};

Result<FileName> parse_file_name(std::string_view name);

}  // namespace spindle
