// Where a control socket is: "unix:PATH", or the path alone for those who only connect.
#pragma once

#include <sys/un.h>

#include <string>

#include "block/result.h"

namespace spindle::vmm {

/// Invalid for a path that no socket can have.
Result<sockaddr_un> control_address(const std::string& path);

}  // namespace spindle::vmm
