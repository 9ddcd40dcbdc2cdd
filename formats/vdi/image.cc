#include "formats/vdi/image.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace spindle::vdi {
namespace {

constexpr std::size_t kPiece = 1 << 20;

bool all_zero(std::span<const std::byte> bytes) {
  return bytes.empty() ||
         (bytes[0] == std::byte{} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

}  // namespace

Image::Image(Node& file, Header h, BlockMap m)
    : header(h), map(std::move(m)), file_(&file), piece_(std::min<std::size_t>(h.block_size, kPiece)) {}

Task<Result<Image>> Image::load(Node& file) {
  if (!file.facts().read_only) {
    auto flushed = co_await file.flush();
    if (!flushed) flushed.error()->kind = ErrorKind::FlushFailed;
    if (!flushed) co_return std::unexpected(std::move(flushed.error()));
  }
  auto header = co_await read_header(file);
  if (!header) co_return std::unexpected(std::move(header.error()));
  auto map = co_await BlockMap::read(file, *header);
  if (!map) co_return std::unexpected(std::move(map.error()));
  co_return Image(file, *header, std::move(*map));
}

Task<Result<>> Image::barrier() {
  auto flushed = co_await file_->flush();
  if (!flushed) flushed.error()->kind = ErrorKind::FlushFailed;
  co_return flushed;
}

Task<Result<>> Image::write_header() {
  encode_header(header);
  const iovec part{header.bytes.data(), header.bytes.size()};
  co_return co_await file_->write(0, Buffers(std::span(&part, 1)), {});
}

Task<Result<>> Image::write_entries() {
  for (const Commit::Write& write : map.take_changed()) {
    const iovec part{const_cast<std::byte*>(write.bytes.data()), write.bytes.size()};
    auto written = co_await file_->write(write.offset, Buffers(std::span(&part, 1)), {});
    if (!written) co_return written;
  }
  map.taken_is_written();
  co_return Result<>{};
}

Task<Result<>> Image::copy_place(uint32_t from, uint32_t to) {
  const uint64_t source = header.place_offset(from), target = header.place_offset(to);
  const uint64_t end = file_->size();
  for (uint64_t at = 0; at < header.block_size; at += piece_.size()) {
    const uint64_t there = source + at < end ? std::min<uint64_t>(piece_.size(), end - source - at) : 0;
    std::ranges::fill(piece_, std::byte{});
    if (there != 0) {
      const iovec part{piece_.data(), there};
      auto read = co_await file_->read(source + at, Buffers(std::span(&part, 1)));
      if (!read) co_return read;
    }
    Result<> put;
    if (all_zero(piece_)) {
      put = co_await file_->write_zeroes(target + at, piece_.size(), {.unmap = true});
    } else {
      const iovec part{piece_.data(), piece_.size()};
      put = co_await file_->write(target + at, Buffers(std::span(&part, 1)), {});
    }
    if (!put) co_return put;
  }
  co_return Result<>{};
}

Task<Result<>> Image::make_places(uint64_t places) {
  const uint64_t end = header.data_offset + places * header.block_size;
  if (file_->size() >= end) co_return Result<>{};
  co_return co_await file_->resize(end);
}

Task<Result<>> Image::cut_places(uint64_t places) {
  const uint64_t end = header.data_offset + places * header.block_size;
  if (file_->size() <= end) co_return Result<>{};
  co_return co_await file_->resize(end);
}

Task<Result<bool>> Image::place_is_zero(uint32_t place) {
  const uint64_t end = std::min(header.place_offset(place) + header.block_size, file_->size());
  for (uint64_t at = header.place_offset(place); at < end;) {
    auto extent = co_await file_->map(at, end - at);
    if (!extent) co_return std::unexpected(std::move(extent.error()));
    if (extent->zero) {
      at += extent->length;
      continue;
    }
    const uint64_t run_end = at + extent->length;
    while (at < run_end) {
      const std::size_t length = std::min<uint64_t>(piece_.size(), run_end - at);
      const iovec part{piece_.data(), length};
      auto read = co_await file_->read(at, Buffers(std::span(&part, 1)));
      if (!read) co_return std::unexpected(std::move(read.error()));
      if (!all_zero(std::span(piece_).first(length))) co_return false;
      at += length;
    }
  }
  co_return true;
}

uint64_t Image::places_begun() const {
  return header.places_begun_in(file_->size());
}

}  // namespace spindle::vdi
