#include "vmm/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "block/parse.h"
#include "vmm/layout.h"

namespace spindle::vmm {
namespace {

std::vector<GuestMemory::Region> regions_of(uint8_t* host, uint64_t size) {
  const uint64_t low = std::min(size, kLowRamLimit);
  std::vector<GuestMemory::Region> regions{{.guest_address = 0, .size = low, .host = host}};
  if (size > low) regions.push_back({.guest_address = kHighRamStart, .size = size - low, .host = host + low});
  return regions;
}

}  // namespace

Result<> GuestRam::check_size(uint64_t bytes) {
  const auto refuse = [&](const char* why) {
    return std::unexpected(Error::invalid(
        "memory", "", fmt::format("{} is {}; give 64M to 1T, in whole MiB", format_size(bytes), why)));
  };
  if (bytes < kMinMemory) return refuse("too little");
  if (bytes > kMaxMemory) return refuse("too much");
  if (bytes % kMiB != 0) return refuse("not a whole number of MiB");
  return {};
}

Result<> GuestRam::check_host(uint64_t bytes) {
  struct sysinfo info {};
  if (sysinfo(&info) < 0) return std::unexpected(Error::from_errno(errno, "sysinfo", "this host"));
  const uint64_t total = (static_cast<uint64_t>(info.totalram) + info.totalswap) * info.mem_unit;
  if (bytes <= total) return {};
  return std::unexpected(Error::invalid("memory", "",
                                        fmt::format("{} is more than this host's {}; give less",
                                                    format_size(bytes), format_size(total / kMiB * kMiB))));
}

GuestRam::GuestRam(Fd fd, uint8_t* host, uint64_t size)
    : fd_(std::move(fd)), host_(host), size_(size), memory_(regions_of(host, size)) {}

Result<std::unique_ptr<GuestRam>> GuestRam::create(uint64_t bytes) {
  SPINDLE_TRY(check_size(bytes));
  Fd fd(memfd_create(kMemfdName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return std::unexpected(Error::from_errno(errno, "memfd_create", "guest memory"));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) < 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
    return std::unexpected(Error::from_errno(errno, "sizing", "guest memory"));
  }
  void* host = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (host == MAP_FAILED) {
    Error error = Error::from_errno(errno, "mapping", "guest memory");
    error.detail = fmt::format("{} MiB do not fit; give a smaller --memory", bytes / kMiB);
    return std::unexpected(std::move(error));
  }
  // A guest's memory in a core dump is of no use to us and may be secret. Both calls are hints.
  madvise(host, bytes, MADV_DONTDUMP);
  madvise(host, bytes, MADV_HUGEPAGE);
  return std::unique_ptr<GuestRam>(new GuestRam(std::move(fd), static_cast<uint8_t*>(host), bytes));
}

GuestRam::~GuestRam() {
  munmap(host_, size_);
}

uint64_t GuestRam::low_size() const {
  return memory_.regions().front().size;
}

std::vector<MemoryMapEntry> GuestRam::memory_map() const {
  constexpr uint32_t kRam = 1, kReserved = 2;
  std::vector<MemoryMapEntry> map{
      {0, kLowMemoryEnd, kRam},
      {kLowMemoryEnd, 0xa0000 - kLowMemoryEnd, kReserved},
      {kAcpiAddress, kAcpiEnd - kAcpiAddress, kReserved},
      {kHighMemoryStart, low_size() - kHighMemoryStart, kRam},
  };
  for (const GuestMemory::Region& region : memory_.regions().subspan(1)) {
    map.push_back({region.guest_address, region.size, kRam});
  }
  return map;
}

Result<> GuestRam::attach(Vm& vm) const {
  uint32_t slot = 0;
  for (const GuestMemory::Region& region : memory_.regions()) {
    SPINDLE_TRY(vm.add_memory(slot++, region.guest_address, region.size, region.host));
  }
  return {};
}

}  // namespace spindle::vmm
