#include "devices/ide/media.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "devices/ide/drive.h"

namespace spindle::ide {
namespace {

// The part [offset, offset + length) of scattered memory.
void slice(std::span<const iovec> parts, uint64_t offset, uint64_t length, std::vector<iovec>& out) {
  out.clear();
  for (const iovec& part : parts) {
    if (length == 0) return;
    if (offset >= part.iov_len) {
      offset -= part.iov_len;
      continue;
    }
    const uint64_t take = std::min<uint64_t>(part.iov_len - offset, length);
    out.push_back({static_cast<uint8_t*>(part.iov_base) + offset, static_cast<std::size_t>(take)});
    offset = 0;
    length -= take;
  }
}

// The address is at fault only if nothing was asked of the host: its EINVAL is an error like any other.
bool bad_address(const Error& error) {
  return error.kind == ErrorKind::Invalid && error.number == 0;
}

uint8_t read_error(const Error& error) {
  return bad_address(error) ? kIdnf : kUnc;
}

uint8_t write_error(const Error& error) {
  if (bad_address(error)) return kIdnf;
  return error.kind == ErrorKind::ReadOnly ? kWp | kAbrt : kAbrt;
}

// Finds the first bad sector of a failed read by halving: at most 17 further reads, of no more sectors in all
// than the request has, and every sector before the bad one ends up in its place. A fault that does not come
// back is reported at the request's first sector: the host must hear of it, and trusts what lies before.
Task<Outcome> locate_read_error(Disk& disk, const Request& request, Buffers data, uint8_t error) {
  std::vector<iovec> piece;
  uint32_t good = 0;
  uint32_t end = request.sectors();  // there is a bad sector in [good, end)
  while (end - good > 1) {
    const uint32_t half = (end - good) / 2;
    slice(data.parts, uint64_t{good} << kSectorShift, uint64_t{half} << kSectorShift, piece);
    const Buffers half_buffers(piece, uint64_t{half} << kSectorShift);
    auto result = co_await disk.read((request.lba + good) << kSectorShift, half_buffers);
    if (result) {
      good += half;
    } else {
      error = read_error(*result.error());
      end = good + half;
    }
  }
  if (request.sectors() > 1) {
    slice(data.parts, uint64_t{good} << kSectorShift, kSectorBytes, piece);
    const Buffers sector_buffers(piece, kSectorBytes);
    auto result = co_await disk.read((request.lba + good) << kSectorShift, sector_buffers);
    if (result) good = 0;
  }
  const Fault fault = error == kUnc ? Fault::Read : Fault::None;
  co_return Outcome{.error = error, .lba = request.lba + good, .good_sectors = good, .fault = fault};
}

}  // namespace

Fault modification_fault(const Drive& drive, const Error& error) {
  if (drive.disk().node().sequencer().failure()) return Fault::Flush;
  return bad_address(error) || error.kind == ErrorKind::ReadOnly ? Fault::None : Fault::Write;
}

Task<Outcome> read_media(Drive& drive, const Request& request, Buffers data) {
  auto result = co_await drive.disk().read(request.lba << kSectorShift, data);
  if (result) co_return Outcome{};
  const uint8_t error = read_error(*result.error());
  co_return co_await locate_read_error(drive.disk(), request, data, error);
}

Task<Outcome> write_media(Drive& drive, const Request& request, Buffers data) {
  const WriteFlags flags{.fua = request.command->fua};
  auto result = co_await drive.disk().write(request.lba << kSectorShift, data, flags);
  if (result) co_return Outcome{};
  const Error& error = *result.error();
  co_return Outcome{
      .error = write_error(error), .lba = request.lba, .fault = modification_fault(drive, error)};
}

Task<Outcome> read_disc(Drive&, const Request& request, Buffers data) {
  Disk& disk = *request.medium;
  const uint64_t offset = request.lba << kSectorShift;
  const uint64_t there = std::min(data.size, disk.size() - std::min(disk.size(), offset));
  std::vector<iovec> parts;
  slice(data.parts, there, data.size - there, parts);
  for (const iovec& beyond : parts) std::memset(beyond.iov_base, 0, beyond.iov_len);
  if (there == 0) co_return Outcome{};
  slice(data.parts, 0, there, parts);
  const Buffers buffers(parts, there);
  auto result = co_await disk.read(offset, buffers);
  if (result) co_return Outcome{};
  Request read = request;
  read.bytes = there;
  const Outcome located = co_await locate_read_error(disk, read, buffers, kUnc);
  Sense sense = kUnrecoveredReadError;
  sense.has_block = true;
  sense.block = static_cast<uint32_t>(located.lba.value_or(request.lba) >> (kDiscBlockShift - kSectorShift));
  co_return Outcome{.sense = sense};
}

Task<Outcome> verify_media(Drive& drive, const Request& request, Buffers) {
  constexpr uint32_t kPieceSectors = 128;
  std::vector<uint8_t> scratch(std::size_t{std::min(request.sectors(), kPieceSectors)} << kSectorShift);
  for (uint32_t done = 0; done < request.sectors();) {
    const uint32_t count = std::min(request.sectors() - done, kPieceSectors);
    const Request piece = request.part(uint64_t{done} << kSectorShift, uint64_t{count} << kSectorShift);
    const iovec memory{scratch.data(), std::size_t{count} << kSectorShift};
    const Buffers piece_buffers(std::span(&memory, 1), memory.iov_len);
    Outcome outcome = co_await read_media(drive, piece, piece_buffers);
    if (!outcome.ok()) {
      outcome.good_sectors += done;
      co_return outcome;
    }
    done += count;
  }
  co_return Outcome{};
}

Task<Outcome> flush_media(Drive& drive, const Request&, Buffers) {
  auto result = co_await drive.disk().flush();
  if (!result) co_return Outcome{.error = kAbrt, .fault = modification_fault(drive, *result.error())};
  co_return Outcome{};
}

Task<Outcome> enable_write_cache(Drive& drive, const Request&, Buffers) {
  auto result = co_await drive.disk().set_write_cache(true);
  // After a failed flush the disk stays write-through whatever the guest wants; it must not believe
  // otherwise.
  if (!result || !drive.disk().write_cache()) co_return Outcome::failed(kAbrt);
  co_return Outcome{};
}

Task<Outcome> disable_write_cache(Drive& drive, const Request&, Buffers) {
  auto result = co_await drive.disk().set_write_cache(false);
  if (!result) co_return Outcome{.error = kAbrt, .fault = modification_fault(drive, *result.error())};
  co_return Outcome{};
}

}  // namespace spindle::ide
