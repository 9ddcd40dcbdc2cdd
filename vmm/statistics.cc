#include "vmm/statistics.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "vmm/kvm.h"

namespace spindle::vmm {

Result<MemoryUse> memory_use(const std::string& guest_memfd, const std::string& smaps) {
  std::ifstream file(smaps);
  if (!file) return std::unexpected(Error::from_errno(errno, "read", smaps));
  MemoryUse use;
  bool guest = false;
  const std::string guest_name = "/memfd:" + guest_memfd;
  // A mapping begins with a line "address-address permissions offset device inode path"; lines of its values
  // follow, each with a name that ends in a colon.
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first.empty()) continue;
    if (first.back() != ':') {
      guest = line.find(guest_name) != std::string::npos;
    } else if (first == "Rss:") {
      uint64_t kib = 0;
      words >> kib;
      use.resident += kib * 1024;
      if (guest) use.guest_resident += kib * 1024;
    }
  }
  return use;
}

Result<> write_json_file(const std::string& file, const nlohmann::ordered_json& json) {
  const std::string temporary = file + ".tmp";
  const std::string text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  Fd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) return std::unexpected(Error::from_errno(errno, "open", temporary));
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(fd.get(), text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return std::unexpected(Error::from_errno(errno, "write", temporary));
    done += static_cast<size_t>(written);
  }
  if (rename(temporary.c_str(), file.c_str()) < 0)
    return std::unexpected(Error::from_errno(errno, "rename", file));
  return {};
}

}  // namespace spindle::vmm
