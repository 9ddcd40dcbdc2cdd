#include "crash/other_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "crash/program.h"
#include "crash/sample.h"

namespace spindle::crash {
namespace {

constexpr const char* kOperation = "crash states for QEMU";
constexpr int kPattern = 0x55;

// The worst that qemu-img check said, or nothing if there were at most leaks.
std::string worse_than_leaks(const std::string& output) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("ERROR", 0) != 0) continue;
    unsigned counted = 0, header = 0;
    if (std::sscanf(line.c_str(), "ERROR: allocated blocks mismatch, is %x, should be %x", &counted,
                    &header) == 2 &&
        counted <= header)
      continue;
    return line;
  }
  return {};
}

Result<> write_all(int fd, const std::byte* bytes, std::size_t length, uint64_t offset,
                   const std::string& path) {
  while (length != 0) {
    const ssize_t done = ::pwrite(fd, bytes, length, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return std::unexpected(Error::from_errno(done < 0 ? errno : EIO, "write", path, offset));
    bytes += done;
    length -= static_cast<std::size_t>(done);
    offset += static_cast<uint64_t>(done);
  }
  return {};
}

}  // namespace

Result<> write_out(const SectorImage& image, const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return std::unexpected(Error::from_errno(errno, "open", path));
  Result<> result;
  const uint64_t sectors = (image.size() + kSector - 1) / kSector;
  for (uint64_t sector = image.next_data(0, sectors); result && sector < sectors;
       sector = image.next_data(sector + 1, sectors)) {
    const uint64_t length = std::min(kSector, image.size() - sector * kSector);
    result = write_all(fd, image.contents().bytes(image.at(sector)), length, sector * kSector, path);
  }
  if (result && ::ftruncate(fd, static_cast<off_t>(image.size())) != 0)
    result = std::unexpected(Error::from_errno(errno, "truncate", path));
  ::close(fd);
  return result;
}

Result<std::unique_ptr<OtherReader>> OtherReader::create() {
  for (const char* program : {"qemu-img", "qemu-io"}) {
    auto run = run_program({program, "--version"});
    if (run && run->status == 0) continue;
    return std::unexpected(Error{.kind = ErrorKind::NotFound,
                                 .operation = kOperation,
                                 .node = program,
                                 .detail = fmt::format("{} cannot be run (Debian: qemu-utils)", program)});
  }
  auto directory = WorkDirectory::create();
  if (!directory) return std::unexpected(std::move(directory.error()));
  return std::unique_ptr<OtherReader>(new OtherReader(std::move(*directory)));
}

Result<OtherVerdict> OtherReader::judge(const SectorImage& image, const std::string& format, uint64_t block,
                                        const GuestModel& model) {
  const std::string path = directory_.file("state"), copy = directory_.file("read");
  SPINDLE_TRY(write_out(image, path));
  if (format != "raw") {
    auto checked = run_program({"qemu-img", "check", "-f", format, path});
    if (!checked) return std::unexpected(std::move(checked.error()));
    if (const std::string bad = worse_than_leaks(checked->output); !bad.empty())
      return OtherVerdict{true, "qemu-img check: " + bad};
    // 2: errors, all of which were looked at above; 3: leaks.
    if (checked->status != 0 && checked->status != 2 && checked->status != 3)
      return OtherVerdict{true, "qemu-img check: " + first_line(checked->output)};
  }
  // A block that no write has touched, in every size that the disk may have.
  const uint64_t blocks = model.legal_sizes().empty() ? 0 : std::ranges::min(model.legal_sizes()) / block;
  uint64_t free = 0;
  while (free < blocks) {
    const auto touched = std::ranges::lower_bound(model.touched(), free * block / kSector);
    if (touched == model.touched().end() || *touched >= (free + 1) * block / kSector) break;
    ++free;
  }
  uint64_t written = kNever;
  if (free < blocks) {
    written = free * block + block / 2 / kSector * kSector;
    auto wrote = run_program(
        {"qemu-io", "-f", format, "-c", fmt::format("write -P {} {} {}", kPattern, written, kSector), path});
    if (!wrote) return std::unexpected(std::move(wrote.error()));
    if (wrote->status != 0 || wrote->output.find("wrote 512/512") == std::string::npos)
      return OtherVerdict{true, "qemu-io write: " + first_line(wrote->output)};
  }
  auto converted = run_program({"qemu-img", "convert", "-f", format, "-O", "raw", path, copy});
  if (!converted) return std::unexpected(std::move(converted.error()));
  if (converted->status != 0) return OtherVerdict{true, "qemu-img convert: " + first_line(converted->output)};
  return compare(copy, written, block, model);
}

OtherVerdict OtherReader::compare(const std::string& path, uint64_t written, uint64_t block,
                                  const GuestModel& model) const {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {true, "what qemu-img read cannot be opened"};
  std::vector<std::byte> bytes(1 << 20);
  Sector pattern;
  pattern.fill(std::byte{kPattern});
  OtherVerdict verdict{false, "nothing worse than leaks"};
  for (uint64_t at = 0; !verdict.dangerous;) {
    const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    for (uint64_t within = 0; within + kSector <= static_cast<uint64_t>(got); within += kSector) {
      const uint64_t sector = (at + within) / kSector;
      const std::byte* found = bytes.data() + within;
      const bool ours = written != kNever && sector == written / kSector;
      const auto legal = model.legal(sector);
      const bool good = ours ? std::memcmp(found, pattern.data(), kSector) == 0
                             : std::ranges::any_of(legal, [&](ContentId id) {
                                 return std::memcmp(model.contents().bytes(id), found, kSector) == 0;
                               });
      if (good) continue;
      const bool beside = written != kNever && sector / (block / kSector) == written / block;
      verdict = {true, fmt::format("after QEMU wrote to a free block, sector {}{} reads as it may not",
                                   sector, beside ? " (of that block)" : "")};
      break;
    }
    at += static_cast<uint64_t>(got);
  }
  ::close(fd);
  return verdict;
}

Result<OtherCounts> ask_other_reader(OtherReader& reader, Reactor& reactor, const History& history,
                                     const Subject& subject, const std::string& format, uint64_t block,
                                     Tearing tearing, uint64_t seed, uint64_t states) {
  Laboratory laboratory(reactor, history, subject, tearing, Depth::Metadata);
  OtherCounts counts;
  auto told = for_sample(laboratory, seed, states, [&](Position point) -> Result<> {
    auto verdict = reader.judge(laboratory.image(), format, block, laboratory.model());
    if (!verdict) return std::unexpected(std::move(verdict.error()));
    ++counts.states;
    if (verdict->dangerous && counts.dangerous++ == 0)
      counts.first = fmt::format("before event {}: {}", point, verdict->text);
    return {};
  });
  if (!told) return std::unexpected(std::move(told.error()));
  return counts;
}

}  // namespace spindle::crash
