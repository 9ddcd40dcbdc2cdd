#include "block/protocols/file_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>

#include "block/parse.h"

namespace spindle {
namespace {

constexpr uint32_t kLargestAlignment = 4096;  // of memory, and of what is found by trying
constexpr uint32_t kLargestBlock = 65536;     // of offsets, where the kernel names it

// A number from the request queue of the device in sysfs; partitions share the queue of their disk.
std::optional<uint64_t> queue_attribute(dev_t device, const char* name) {
  for (const char* where : {"queue", "../queue"}) {
    std::ifstream file(fmt::format("/sys/dev/block/{}:{}/{}/{}", major(device), minor(device), where, name));
    std::string text;
    if (file >> text) return parse_number(text);
  }
  return std::nullopt;
}

const char* refusal_of(mode_t mode) {
  if (S_ISDIR(mode)) return "it is a directory, not an image";
  if (S_ISFIFO(mode)) return "it is a FIFO, not an image";
  if (S_ISCHR(mode)) return "it is a character device; a disk needs a regular file or a block device";
  if (S_ISSOCK(mode)) return "it is a socket, not an image";
  return "it is neither a regular file nor a block device";
}

bool reads(int fd, std::byte* memory, std::size_t length) {
  ssize_t result;
  do {
    result = ::pread(fd, memory, length, 0);
  } while (result < 0 && errno == EINTR);
  return result > 0 || (result < 0 && errno != EINVAL);
}

DirectAlignment probe(int fd) {
  DirectAlignment found{kLargestAlignment, kLargestAlignment};
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const std::unique_ptr<void, Free> memory(std::aligned_alloc(kLargestAlignment, 4 * kLargestAlignment));
  if (!memory) return found;
  auto* base = static_cast<std::byte*>(memory.get());
  if (!reads(fd, base, kLargestAlignment)) return found;  // empty, or stranger than we can find out
  for (uint32_t align = 512; align < kLargestAlignment; align *= 2) {
    if (!reads(fd, base + align, kLargestAlignment)) continue;
    found.memory = align;
    break;
  }
  for (uint32_t align = 512; align < kLargestAlignment; align *= 2) {
    if (!reads(fd, base, align)) continue;
    found.request = align;
    break;
  }
  return found;
}

}  // namespace

Result<FileKind> kind_of_file(const struct stat& status, const std::string& path) {
  FileKind kind;
  const dev_t device = S_ISBLK(status.st_mode) ? status.st_rdev : status.st_dev;
  if (S_ISBLK(status.st_mode)) {
    kind.block_device = true;
    const uint64_t granularity = queue_attribute(device, "discard_granularity").value_or(0);
    if (granularity != 0 && granularity <= (1u << 30)) kind.block_size = static_cast<uint32_t>(granularity);
  } else if (S_ISREG(status.st_mode)) {
    if (status.st_blksize > 0 && std::has_single_bit(static_cast<uint64_t>(status.st_blksize)) &&
        status.st_blksize <= (1 << 26)) {
      kind.block_size = static_cast<uint32_t>(status.st_blksize);
    }
  } else {
    return std::unexpected(Error::invalid("open", path, refusal_of(status.st_mode)));
  }
  kind.rotational = queue_attribute(device, "rotational").value_or(0) != 0;
  return kind;
}

Result<uint64_t> size_of_file(int fd, bool block_device, const std::string& path) {
  if (block_device) {
    uint64_t size = 0;
    if (ioctl(fd, BLKGETSIZE64, &size) == 0) return size;
    const off_t end = ::lseek(fd, 0, SEEK_END);
    if (end < 0) return std::unexpected(Error::from_errno(errno, "ask for the size", path));
    return static_cast<uint64_t>(end);
  }
  struct stat status {};
  if (::fstat(fd, &status) != 0) return std::unexpected(Error::from_errno(errno, "ask for the size", path));
  return static_cast<uint64_t>(status.st_size);
}

DirectAlignment direct_alignment(int fd, bool block_device) {
#ifdef STATX_DIOALIGN
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0 && std::has_single_bit(status.stx_dio_mem_align) &&
      std::has_single_bit(status.stx_dio_offset_align) && status.stx_dio_mem_align <= kLargestAlignment &&
      status.stx_dio_offset_align <= kLargestBlock) {
    return {status.stx_dio_offset_align, status.stx_dio_mem_align};
  }
#endif
  if (block_device) {
    int block = 0;
    if (ioctl(fd, BLKSSZGET, &block) == 0 && block > 0 && std::has_single_bit(static_cast<unsigned>(block)) &&
        static_cast<uint32_t>(block) <= kLargestBlock) {
      return {static_cast<uint32_t>(block), std::min(static_cast<uint32_t>(block), kLargestAlignment)};
    }
  }
  return probe(fd);
}

Result<int> reopen(int fd, int flags, const std::string& path) {
  const int other = ::open(fmt::format("/proc/self/fd/{}", fd).c_str(), flags | O_CLOEXEC);
  if (other < 0) return std::unexpected(Error::from_errno(errno, "open once more", path));
  return other;
}

}  // namespace spindle
