#include "image/output.h"

#include <cerrno>
#include <cstdio>

namespace spindle::image {
namespace {

Error output_error() {
  return Error::from_errno(errno == 0 ? EIO : errno, "write the output", "");
}

}  // namespace

Result<> put(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) return std::unexpected(output_error());
  return output_state();
}

Result<> output_state() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return std::unexpected(output_error());
  return {};
}

}  // namespace spindle::image
