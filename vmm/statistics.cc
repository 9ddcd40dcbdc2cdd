#include "vmm/statistics.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
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

namespace {

constexpr int kPatienceMilliseconds = 1000;  // for a FIFO's reader
constexpr int kMaxLinks = 40;                // as the kernel's own limit

struct Target {
  std::string file;         // what the name leads to
  bool replaceable = true;  // a regular file, or none yet
  mode_t mode = 0;          // of the regular file; 0: none yet
};

Result<Target> resolve(const std::string& file) {
  struct stat there {};
  if (stat(file.c_str(), &there) == 0) {
    if (!S_ISREG(there.st_mode)) return Target{.file = file, .replaceable = false};
    std::error_code failed;
    const auto real = std::filesystem::canonical(file, failed);
    if (failed) return std::unexpected(Error::from_errno(failed.value(), "resolve", file));
    return Target{.file = real, .mode = there.st_mode & 07777};
  }
  if (errno != ENOENT) return std::unexpected(Error::from_errno(errno, "stat", file));
  // No such file, but there may be a link that says where to make it.
  std::filesystem::path path = file;
  std::error_code none;
  for (int links = 0; std::filesystem::is_symlink(path, none); ++links) {
    if (links == kMaxLinks) return std::unexpected(Error::from_errno(ELOOP, "resolve", file));
    path = path.parent_path() / std::filesystem::read_symlink(path, none);
  }
  return Target{.file = path};
}

// A new file in the directory of `target`, to be renamed over it. Its name does not depend on the target's,
// which may be as long as a name can be.
Result<Fd> create_beside(const Target& target, std::string& name) {
  const auto directory = std::filesystem::path(target.file).parent_path();
  for (unsigned attempt = 0;; ++attempt) {
    name = directory / (".spindle-statistics-" + std::to_string(getpid()) + "-" + std::to_string(attempt));
    Fd fd(open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd) return fd;
    if (errno == EEXIST && attempt < 100) continue;
    Error error = Error::from_errno(errno, "replace", target.file);
    error.detail = "its directory must exist and be writable";
    return std::unexpected(std::move(error));
  }
}

Result<> write_text(const Fd& fd, const std::string& file, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(fd.get(), text.data() + done, text.size() - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno == EAGAIN) {
      pollfd writable{fd.get(), POLLOUT, 0};
      if (poll(&writable, 1, kPatienceMilliseconds) == 0)
        return std::unexpected(Error::from_errno(ETIMEDOUT, "write", file));
    } else if (errno != EINTR) {
      return std::unexpected(Error::from_errno(errno, "write", file));
    }
  }
  return {};
}

}  // namespace

Result<> write_json_file(const std::string& file, const nlohmann::ordered_json& json) {
  const std::string text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  auto target = resolve(file);
  if (!target) return std::unexpected(target.error());
  if (!target->replaceable) {
    // O_NONBLOCK: a FIFO without a reader is an error instead of a wait.
    const Fd fd(open(file.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!fd) return std::unexpected(Error::from_errno(errno, "open", file));
    return write_text(fd, file, text);
  }
  std::string temporary;
  auto fd = create_beside(*target, temporary);
  if (!fd) return std::unexpected(fd.error());
  auto done = write_text(*fd, file, text);
  if (done && target->mode != 0 && fchmod(fd->get(), target->mode) < 0)
    done = std::unexpected(Error::from_errno(errno, "set the mode of", file));
  if (done && rename(temporary.c_str(), target->file.c_str()) < 0)
    done = std::unexpected(Error::from_errno(errno, "rename to", file));
  if (!done) unlink(temporary.c_str());
  return done;
}

Result<> check_json_file(const std::string& file) {
  auto target = resolve(file);
  if (!target) return std::unexpected(target.error());
  if (!target->replaceable) {
    // Not opened: a FIFO's reader would see the end of it.
    struct stat there {};
    if (stat(file.c_str(), &there) == 0 && S_ISDIR(there.st_mode))
      return std::unexpected(Error::from_errno(EISDIR, "write", file));
    if (access(file.c_str(), W_OK) < 0) return std::unexpected(Error::from_errno(errno, "write", file));
    return {};
  }
  std::string temporary;
  auto fd = create_beside(*target, temporary);
  if (!fd) return std::unexpected(fd.error());
  unlink(temporary.c_str());
  return {};
}

}  // namespace spindle::vmm
