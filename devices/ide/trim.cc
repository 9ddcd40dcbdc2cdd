#include "devices/ide/trim.h"

#include <cstring>

#include "devices/ide/drive.h"
#include "devices/ide/media.h"

namespace spindle::ide {
namespace {

constexpr std::size_t kEntryBytes = 8;
constexpr unsigned kEntryCountShift = 48;
constexpr uint64_t kEntryLba = (uint64_t{1} << kEntryCountShift) - 1;

uint64_t entry_at(std::span<const uint8_t> payload, std::size_t position) {
  uint64_t entry = 0;
  for (std::size_t i = kEntryBytes; i-- > 0;) entry = entry << 8 | payload[position + i];
  return entry;
}

}  // namespace

bool offers_trim(const Drive& drive) {
  return drive.disk().unmaps() && !drive.disk().read_only();
}

TrimPromise trim_promise(const Drive& drive) {
  const NodeFacts& facts = drive.disk().node().facts();
  if (!offers_trim(drive) || !facts.discard_zeroes) return {};
  // What lies outside whole granules keeps its data. That is deterministic, but it is zeroes for all ranges
  // only where a granule is no more than a sector.
  return {.deterministic = true, .zeroes = facts.discard_granularity <= kSectorBytes};
}

std::optional<std::vector<ByteRange>> trim_ranges(std::span<const uint8_t> payload, uint64_t sectors) {
  std::vector<ByteRange> ranges;
  for (std::size_t at = 0; at + kEntryBytes <= payload.size(); at += kEntryBytes) {
    const uint64_t entry = entry_at(payload, at);
    const uint64_t lba = entry & kEntryLba;
    const uint64_t count = entry >> kEntryCountShift;
    if (count == 0) continue;
    if (lba >= sectors || count > sectors - lba) return std::nullopt;
    const ByteRange range{.offset = lba << kSectorShift, .length = count << kSectorShift};
    if (!ranges.empty() && ranges.back().offset + ranges.back().length == range.offset) {
      ranges.back().length += range.length;
    } else {
      ranges.push_back(range);
    }
  }
  return ranges;
}

std::expected<Request, Outcome> parse_trim(const Drive& drive, const Command& command,
                                           const TaskFile& registers) {
  constexpr uint16_t kTrim = 1u << 0;  // the other bits of Features are reserved
  const uint16_t blocks = registers.count.both();
  if (!offers_trim(drive) || registers.features.both() != kTrim || blocks == 0 || blocks > kMaxTrimBlocks)
    return std::unexpected(Outcome::failed(kAbrt));
  Request request = plain_request(command, registers);
  request.bytes = blocks * kSectorBytes;
  return request;
}

Task<Outcome> trim_media(Drive& drive, const Request&, Buffers data) {
  // The host may change its memory while it is read: what is checked is what is used.
  std::vector<uint8_t> payload(data.size);
  std::size_t at = 0;
  for (const iovec& part : data.parts) {
    std::memcpy(payload.data() + at, part.iov_base, part.iov_len);
    at += part.iov_len;
  }
  const auto ranges = trim_ranges(payload, drive.sectors());
  if (!ranges) co_return Outcome::failed(kAbrt);
  if (ranges->empty()) co_return Outcome{};
  auto result = co_await drive.disk().discard(*ranges);
  if (!result) co_return Outcome{.error = kAbrt, .fault = modification_fault(drive, *result.error())};
  co_return Outcome{};
}

}  // namespace spindle::ide
