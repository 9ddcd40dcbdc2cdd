#include "block/result.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace spindle {

ErrorKind kind_of_errno(int number) {
  switch (number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ErrorKind::NoSpace;
    case EOPNOTSUPP:
    case ENOSYS:
    case ENOTTY:
      return ErrorKind::NotSupported;
    case EINVAL:
    case ERANGE:
    case EOVERFLOW:
      return ErrorKind::Invalid;
    case EROFS:
      return ErrorKind::ReadOnly;
    case EBUSY:
    case ETXTBSY:
      return ErrorKind::InUse;
    case ENOENT:
    case ENOTDIR:
      return ErrorKind::NotFound;
    case EACCES:
    case EPERM:
      return ErrorKind::Permission;
    default:
      return ErrorKind::Io;
  }
}

std::string_view to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Io:
      return "I/O error";
    case ErrorKind::NoSpace:
      return "no space left";
    case ErrorKind::NotSupported:
      return "not supported";
    case ErrorKind::Invalid:
      return "invalid argument";
    case ErrorKind::ReadOnly:
      return "read-only";
    case ErrorKind::InUse:
      return "in use";
    case ErrorKind::NotFound:
      return "not found";
    case ErrorKind::Permission:
      return "permission denied";
    case ErrorKind::Corrupt:
      return "image is corrupt";
    case ErrorKind::FlushFailed:
      return "an earlier flush failed";
  }
  return "unknown error";
}

namespace {

// Names come from users and images: what a terminal would obey is shown as \\xNN, and a message stays one
// line.
std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

std::string Error::message() const {
  std::string text = operation;
  if (!node.empty()) text += fmt::format("{}{}", text.empty() ? "" : " of ", node);
  if (offset != 0) text += fmt::format(" at offset {}", offset);
  if (!text.empty()) text += ": ";
  if (!detail.empty()) {
    text += detail;
    if (number != 0) text += fmt::format(" ({})", std::generic_category().message(number));
  } else if (number != 0) {
    text += std::generic_category().message(number);
  } else {
    text += to_string(kind);
  }
  return printable(text);
}

Error Error::from_errno(int number, std::string operation, std::string node, uint64_t offset) {
  return Error{.kind = kind_of_errno(number),
               .number = number,
               .operation = std::move(operation),
               .node = std::move(node),
               .offset = offset};
}

Error Error::invalid(std::string operation, std::string node, std::string detail) {
  return Error{.kind = ErrorKind::Invalid,
               .operation = std::move(operation),
               .node = std::move(node),
               .detail = std::move(detail)};
}

}  // namespace spindle
