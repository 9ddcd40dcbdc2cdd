#include "formats/vdi/resize.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "formats/vdi/compact.h"

namespace spindle::vdi {
namespace {

uint64_t blocks_of(uint64_t size, uint64_t block_size) {
  return size / block_size + (size % block_size != 0);
}

uint64_t sectors_up(uint64_t bytes) {
  return (bytes + kSector - 1) / kSector * kSector;
}

// Of the map that so many blocks need, in whole blocks of the data area.
uint64_t places_for_map(uint64_t blocks, uint64_t block_size) {
  return blocks_of(sectors_up(blocks * sizeof(uint32_t)), block_size);
}

// Blocks of the disk. The map may have entries behind them, left by a shrinking that was interrupted: a disk
// that grows must not show what they point to.
uint32_t in_use(const Header& header) {
  return static_cast<uint32_t>(blocks_of(header.disk_size, header.block_size));
}

bool fits_before_data(const Header& header, uint64_t blocks) {
  return header.map_offset + sectors_up(blocks * sizeof(uint32_t)) <= header.data_offset;
}

Task<Result<>> zero_tail(Image& image) {
  const uint64_t block_size = image.header.block_size;
  const uint64_t inside = image.header.disk_size % block_size;
  if (inside == 0) co_return Result<>{};
  const uint32_t entry = image.map[static_cast<uint32_t>(image.header.disk_size / block_size)];
  if (!is_place(entry)) co_return Result<>{};
  co_return co_await image.file().write_zeroes(image.header.place_offset(entry) + inside, block_size - inside,
                                               {.unmap = true});
}

Task<Result<>> write_map(Node& file, BlockMap& map) {
  for (uint32_t block = 0; block < map.blocks(); ++block) map.mark(block);
  for (const Commit::Write& write : map.take_changed()) {
    const iovec part{const_cast<std::byte*>(write.bytes.data()), write.bytes.size()};
    auto written = co_await file.write(write.offset, Buffers(std::span(&part, 1)), {});
    if (!written) co_return written;
  }
  map.taken_is_written();
  co_return Result<>{};
}

// Nothing of the data area's first `count` places is used when this has returned, durably.
Task<Result<>> vacate(Image& image, uint32_t count) {
  const auto used = image.map.used().places;
  uint64_t place = std::max<uint64_t>(used.empty() ? 0 : uint64_t{used.back()} + 1, count);
  std::vector<std::pair<uint32_t, uint32_t>> moves;  // block, place
  for (uint32_t block = 0; block < image.map.blocks(); ++block) {
    if (image.map[block] < count) moves.emplace_back(block, static_cast<uint32_t>(place++));
  }
  if (place >= kZero) {
    co_return std::unexpected(Error{.kind = ErrorKind::NoSpace,
                                    .operation = "resize",
                                    .node = image.file().facts().name,
                                    .detail = "there is no place left to move blocks to"});
  }
  Result<> step;
  if (image.header.allocated < place) {
    image.header.allocated = static_cast<uint32_t>(place);
    step = co_await image.write_header();
  }
  if (step) step = co_await image.make_places(place);
  for (const auto& [block, to] : moves) {
    if (!step) co_return step;
    step = co_await image.copy_place(image.map[block], to);
  }
  if (step) step = co_await image.barrier();
  if (!step) co_return step;
  for (const auto& [block, to] : moves) image.map.set(block, to);
  step = co_await image.write_entries();
  if (step) step = co_await image.barrier();
  co_return step;
}

Task<Result<>> grow_in_place(Image& image, uint64_t size, uint32_t blocks, Mutation mutation) {
  Result<> step;
  if (mutation != Mutation::TailNotZeroed) step = co_await zero_tail(image);
  BlockMap map(image.header.map_offset, blocks);
  const uint32_t had = in_use(image.header);
  for (uint32_t block = 0; block < had; ++block) map.set(block, image.map[block]);
  // These the file has already.
  static_cast<void>(map.take_changed());
  map.taken_is_written();
  for (uint32_t block = had; block < blocks; ++block) map.set(block, kFree);
  for (const Commit::Write& write : map.take_changed()) {
    if (!step) co_return step;
    const iovec part{const_cast<std::byte*>(write.bytes.data()), write.bytes.size()};
    step = co_await image.file().write(write.offset, Buffers(std::span(&part, 1)), {});
  }
  if (step && mutation != Mutation::BlocksBeforeMap) step = co_await image.barrier();
  image.header.blocks = blocks;
  image.header.disk_size = size;
  image.map = std::move(map);
  if (step) step = co_await image.write_header();
  if (step) step = co_await image.barrier();
  co_return step;
}

// While blocks are at the end, their places may be more than the image has blocks, which other programs
// refuse. Then it gets more blocks first, behind the end of the disk, if its map has room for them.
Task<Result<>> make_room_for_moves(Image& image, uint32_t shift) {
  const auto used = image.map.used().places;
  const auto moved = static_cast<uint64_t>(std::ranges::lower_bound(used, shift) - used.begin());
  const uint64_t needed = std::max<uint64_t>(used.empty() ? 0 : uint64_t{used.back()} + 1, shift) + moved;
  if (moved == 0 || needed <= image.header.blocks) co_return Result<>{};
  if (needed <= kMostBlocks && fits_before_data(image.header, needed))
    co_return co_await grow_in_place(image, image.header.disk_size, static_cast<uint32_t>(needed),
                                     Mutation::None);
  co_return std::unexpected(Error{
      .kind = ErrorKind::NotSupported,
      .operation = "resize",
      .node = image.file().facts().name,
      .detail =
          "all its blocks are in use and its map has no room for one more: `spindle img convert` it into "
          "a new image, and resize that"});
}

Task<Result<>> grow_with_new_map(Image& image, uint64_t size, uint32_t blocks, Mutation mutation) {
  const uint64_t block_size = image.header.block_size;
  const auto shift = static_cast<uint32_t>(places_for_map(blocks, block_size));
  auto step = co_await make_room_for_moves(image, shift);
  if (step) step = co_await vacate(image, shift);
  if (!step) co_return step;
  Header header = image.header;
  header.map_offset = image.header.data_offset;
  header.data_offset = static_cast<uint32_t>(image.header.data_offset + shift * block_size);
  header.blocks = blocks;
  header.disk_size = size;
  header.allocated = image.header.allocated > shift ? image.header.allocated - shift : 0;
  BlockMap map(header.map_offset, blocks);
  for (uint32_t block = 0; block < image.map.blocks(); ++block) {
    const uint32_t entry = block < in_use(image.header) ? image.map[block] : kFree;
    map.set(block, is_place(entry) ? entry - shift : entry);
  }
  step = co_await zero_tail(image);
  if (step) step = co_await write_map(image.file(), map);
  if (step && mutation != Mutation::SwitchBeforeMap) step = co_await image.barrier();
  image.header = header;
  if (step) step = co_await image.write_header();
  if (step) step = co_await image.barrier();
  co_return step;
}

Task<Result<>> shrink(Image& image, uint64_t size, uint32_t blocks, Mutation mutation) {
  image.header.disk_size = size;
  auto step = co_await image.write_header();
  if (step && mutation != Mutation::EntriesBeforeSize) step = co_await image.barrier();
  if (!step) co_return step;
  for (uint32_t block = blocks; block < image.map.blocks(); ++block) {
    if (image.map[block] != kFree) image.map.set(block, kFree);
  }
  step = co_await image.write_entries();
  if (step) step = co_await image.barrier();
  CheckReport ignored;
  if (step) step = co_await fill_holes(image, ignored, mutation);
  image.header.blocks = blocks;
  if (step) step = co_await image.write_header();
  if (step) step = co_await image.barrier();
  co_return step;
}

}  // namespace

Result<> can_resize(const Header& header, uint64_t size, const std::string& name) {
  const uint64_t blocks = blocks_of(size, header.block_size);
  std::string why;
  if (size % kSector != 0) {
    why = fmt::format("{} bytes are no whole sectors of 512", size);
  } else if (blocks > kMostBlocks) {
    why = fmt::format("with blocks of {} bytes a disk has at most {} bytes, not {}", header.block_size,
                      uint64_t{kMostBlocks} * header.block_size, size);
  } else if (!fits_before_data(header, blocks) &&
             header.data_offset + places_for_map(blocks, header.block_size) * header.block_size >
                 std::numeric_limits<uint32_t>::max()) {
    why = "its map cannot be moved further; convert it into a new image";
  }
  if (why.empty()) return {};
  return std::unexpected(Error::invalid("resize", name, std::move(why)));
}

Task<Result<>> resize(Node& file, uint64_t size, Mutation mutation) {
  auto image = co_await Image::load(file);
  if (!image) co_return std::unexpected(std::move(image.error()));
  const auto blocks = static_cast<uint32_t>(blocks_of(size, image->header.block_size));
  if (size == image->header.disk_size) co_return Result<>{};
  if (size < image->header.disk_size) co_return co_await shrink(*image, size, blocks, mutation);
  if (blocks <= image->header.blocks || fits_before_data(image->header, blocks))
    co_return co_await grow_in_place(*image, size, std::max(blocks, image->header.blocks), mutation);
  co_return co_await grow_with_new_map(*image, size, blocks, mutation);
}

}  // namespace spindle::vdi
