#include "vmm/control/address.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cstring>

namespace spindle::vmm {

Result<sockaddr_un> control_address(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (path.empty() || path.size() >= sizeof address.sun_path || path.find('\0') != std::string::npos) {
    return std::unexpected(Error::invalid(
        "control", path, fmt::format("a socket's path has 1 to {} bytes", sizeof address.sun_path - 1)));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace spindle::vmm
