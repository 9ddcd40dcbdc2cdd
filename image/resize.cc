#include "image/resize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "block/parse.h"
#include "image/aligned_buffer.h"

namespace spindle::image {
namespace {

constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();
constexpr uint64_t kPiece = 2 << 20;  // bytes of zeroes written at once

Task<Result<>> write_zeroes_out(Disk& disk, uint64_t position) {
  auto zeroes = AlignedBuffer::allocate(kPiece);
  if (!zeroes) co_return std::unexpected(std::move(zeroes.error()));
  std::memset(zeroes->data(), 0, zeroes->size());
  while (position < disk.size()) {
    const uint64_t length = std::min(kPiece, disk.size() - position);
    const iovec part = zeroes->part(0, length);
    const Buffers buffers(std::span(&part, 1), length);
    SPINDLE_CO_TRY(co_await disk.write(position, buffers));
    position += length;
  }
  co_return Result<>{};
}

}  // namespace

Result<GrowBy> parse_preallocation(const std::string& text) {
  if (text == "off") return GrowBy::Holes;
  if (text == "falloc") return GrowBy::Reserving;
  if (text == "full") return GrowBy::Writing;
  if (text == "metadata") {
    return std::unexpected(
        Error{.kind = ErrorKind::NotSupported, .detail = "Unsupported preallocation mode: metadata"});
  }
  return std::unexpected(Error::invalid("", "", fmt::format("Invalid preallocation mode '{}'", text)));
}

Result<uint64_t> new_size(const std::string& text, uint64_t size) {
  const bool more = text.starts_with('+'), less = text.starts_with('-');
  const auto number = parse_size(text.substr(more || less ? 1 : 0));
  if (!number) {
    return std::unexpected(
        Error::invalid("", "",
                       fmt::format("Parameter 'size' expects a number of bytes, which may have a suffix k, "
                                   "M, G, T, P or E (k = 1024), not \"{}\"",
                                   text)));
  }
  const bool nothing = less ? *number >= size : more ? *number > kLargest - size : *number == 0;
  if (nothing) return std::unexpected(Error::invalid("", "", "New image size must be positive"));
  return less ? size - *number : more ? size + *number : *number;
}

Task<Result<>> resize_image(Disk& disk, const std::string& format, uint64_t size, GrowBy grow) {
  const uint64_t before = disk.size();
  if (grow != GrowBy::Holes && size <= before) {
    co_return std::unexpected(Error::invalid("", "", "Preallocation can only be used for growing images"));
  }
  if (grow != GrowBy::Holes && format != "raw") {
    co_return std::unexpected(
        Error{.kind = ErrorKind::NotSupported,
              .detail = fmt::format("an image of the format {} grows without reserving space", format)});
  }
  SPINDLE_CO_TRY(co_await disk.resize(size));
  if (grow == GrowBy::Reserving) co_return co_await disk.write_zeroes(before, disk.size() - before, {});
  if (grow == GrowBy::Writing) co_return co_await write_zeroes_out(disk, before);
  co_return Result<>{};
}

}  // namespace spindle::image
