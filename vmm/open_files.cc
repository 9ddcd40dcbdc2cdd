#include "vmm/open_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>

namespace spindle::vmm {
namespace {

constexpr uint64_t kOthers = 256;  // KVM, vCPUs, reactor, terminal, and a few for each of the images

}  // namespace

Result<> make_room_for_open_files(uint64_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
    return std::unexpected(Error::from_errno(errno, "getrlimit", "open files"));
  const uint64_t needed = count + kOthers;
  if (limit.rlim_cur >= needed) return {};
  if (limit.rlim_max < needed) {
    return std::unexpected(Error::invalid(
        "disks", "",
        fmt::format("their queues need up to {} open files, and {} are allowed (ulimit -Hn); give "
                    "fewer queues=",
                    needed, limit.rlim_max)));
  }
  limit.rlim_cur = needed;
  if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
    return std::unexpected(Error::from_errno(errno, "setrlimit", "open files"));
  return {};
}

}  // namespace spindle::vmm
