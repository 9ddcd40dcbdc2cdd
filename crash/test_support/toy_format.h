// A small format that allocates, for tests of the explorer: a count, a map, and blocks. Its right order is
// that of every format here (DESIGN: freeze, stage, barrier, publish, release), and each of its steps can be
// left out on purpose; the explorer must find nothing in the first and something in each of the others.
//
//   sector 0      magic, guest size, block size, count of blocks that are in use or were
//   sectors 1...  the map: for each block of the guest the number of its block in the file plus one, or 0
//   then blocks
//
// Threading: the reactor's thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "block/filters/turn.h"
#include "block/protocols/bounce_pool.h"
#include "crash/content.h"
#include "crash/subject.h"

namespace spindle::crash::test {

enum class ToyMutation : uint8_t {
  None,
  NoDataBarrier,   ///< the map is written without waiting for data and count to be durable
  CountWithMap,    ///< the count is written together with the map, not before
  NoFinalBarrier,  ///< a flush returns when the map is written, not when it is durable
  ReuseTooEarly,   ///< a discarded block is given out again before it is known to be unlinked
  NoZeroOnReuse,   ///< and without being emptied
  MapAtOnce,       ///< each map entry is written as its block is given out
  ForgetsMap,      ///< a flush writes the first changed sector of the map only
};
inline constexpr std::array kToyMutations = {
    ToyMutation::NoDataBarrier, ToyMutation::CountWithMap,  ToyMutation::NoFinalBarrier,
    ToyMutation::ReuseTooEarly, ToyMutation::NoZeroOnReuse, ToyMutation::MapAtOnce,
    ToyMutation::ForgetsMap,
};
constexpr std::string_view to_string(ToyMutation mutation) {
  constexpr std::string_view kNames[] = {"none",
                                         "no data barrier",
                                         "count with map",
                                         "no final barrier",
                                         "reuse too early",
                                         "no zero on reuse",
                                         "map at once",
                                         "forgets map"};
  return kNames[static_cast<std::size_t>(mutation)];
}

struct ToyHeader {
  uint64_t magic;
  uint64_t guest_size;
  uint64_t block;
  uint64_t count;
};
inline constexpr uint64_t kToyMagic = 0x20594f54;  // host byte order: it never leaves the process
inline constexpr uint64_t kToyEntries = 16;        // of a sector, so that small images have several

struct ToyLayout {
  uint64_t blocks;
  uint64_t map_sectors;
  uint64_t data;  ///< bytes before the first block

  explicit ToyLayout(const ToyHeader& header)
      : blocks((header.guest_size + header.block - 1) / header.block),
        map_sectors((blocks + kToyEntries - 1) / kToyEntries),
        data((kSector * (1 + map_sectors) + header.block - 1) / header.block * header.block) {}
};

inline Task<Result<>> toy_io(Node& file, bool write, uint64_t offset, void* memory, std::size_t bytes) {
  const iovec part{memory, bytes};
  if (write) co_return co_await file.write(offset, Buffers(std::span(&part, 1)), {});
  co_return co_await file.read(offset, Buffers(std::span(&part, 1)));
}

class ToyNode final : public Node {
 public:
  ToyNode(std::shared_ptr<Node> file, ToyHeader header, std::vector<uint32_t> map, ToyMutation mutation)
      : Node(file->reactor()),
        file_(std::move(file)),
        header_(header),
        layout_(header),
        mutation_(mutation),
        map_(std::move(map)),
        ready_(map_),
        dirty_(layout_.map_sectors),
        commit_(reactor()),
        growth_(reactor()) {
    facts_.name = "toy";
    facts_.cluster_size = static_cast<uint32_t>(header.block);
    facts_.discard_granularity = facts_.cluster_size;
    // Blocks that nothing points to after a crash stay lost: leaks are what the toy may have.
  }

  const NodeFacts& facts() const override { return facts_; }
  uint64_t size() const override { return header_.guest_size; }
  Node* child() const override { return file_.get(); }

  Task<Result<>> read(uint64_t offset, Buffers buffers) override {
    SPINDLE_CO_TRY(check_range("read", offset, buffers.size));
    for (uint64_t done = 0; done < buffers.size;) {
      const auto [block, within, length] = at(offset + done, buffers.size - done);
      if (map_[block] == 0) {
        zero_in(buffers, done, length);
      } else {
        std::vector<iovec> parts;
        slice(buffers, done, length, buffers.parts.size() + 1, parts);
        auto result = co_await file_->read(place(map_[block]) + within, Buffers(parts));
        if (!result) co_return result;
      }
      done += length;
    }
    co_return Result<>{};
  }

  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags flags) override {
    SPINDLE_CO_TRY(check_range("write", offset, buffers.size));
    for (uint64_t done = 0; done < buffers.size;) {
      const auto [block, within, length] = at(offset + done, buffers.size - done);
      auto fresh = co_await allocate(block);
      if (!fresh) co_return std::unexpected(std::move(fresh.error()));
      std::vector<iovec> parts;
      slice(buffers, done, length, buffers.parts.size() + 1, parts);
      auto result = co_await file_->write(place(*fresh) + within, Buffers(parts), {});
      if (!result) co_return result;
      if (map_[block] == *fresh && ready_[block] != *fresh) {
        ready_[block] = *fresh;
        dirty_[block / kToyEntries] = true;
      }
      done += length;
    }
    if (flags.fua) co_return co_await flush();
    co_return Result<>{};
  }

  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags flags) override {
    SPINDLE_CO_TRY(check_range("write_zeroes", offset, length));
    for (uint64_t done = 0; done < length;) {
      const auto [block, within, part] = at(offset + done, length - done);
      if (map_[block] != 0) {
        if (part == header_.block) {
          unlink(block);
        } else {
          auto result = co_await file_->write_zeroes(place(map_[block]) + within, part, {});
          if (!result) co_return result;
        }
      }
      done += part;
    }
    if (flags.fua) co_return co_await flush();
    co_return Result<>{};
  }

  Task<Result<>> discard(uint64_t offset, uint64_t length) override {
    SPINDLE_CO_TRY(check_range("discard", offset, length));
    for (uint64_t done = 0; done < length;) {
      const auto [block, within, part] = at(offset + done, length - done);
      if (part == header_.block && map_[block] != 0) unlink(block);
      done += part;
    }
    co_return Result<>{};
  }

  Task<Result<>> flush() override {
    Turns::Turn turn(commit_);
    co_await turn;
    // Freeze.
    const std::vector<uint32_t> frozen = ready_;
    std::vector<bool> dirty(layout_.map_sectors);
    dirty.swap(dirty_);
    std::vector<uint32_t> freed;
    freed.swap(freed_);
    const bool counts = count_dirty_;
    count_dirty_ = false;
    const bool any = std::ranges::find(dirty, true) != dirty.end();
    // Stage, barrier.
    if (counts && mutation_ != ToyMutation::CountWithMap) {
      auto result = co_await write_header();
      if (!result) co_return result;
    }
    if (mutation_ != ToyMutation::NoDataBarrier || !any) {
      auto result = co_await file_->flush();
      if (!result || !any) co_return result;
    }
    // Publish, barrier.
    if (counts && mutation_ == ToyMutation::CountWithMap) {
      auto result = co_await write_header();
      if (!result) co_return result;
    }
    for (uint64_t i = 0; i < layout_.map_sectors; ++i) {
      if (!dirty[i]) continue;
      auto result = co_await write_map(frozen, i);
      if (!result) co_return result;
      if (mutation_ == ToyMutation::ForgetsMap) break;
    }
    if (mutation_ != ToyMutation::NoFinalBarrier) {
      auto result = co_await file_->flush();
      if (!result) co_return result;
    }
    // Release.
    for (const uint32_t entry : freed) {
      auto result = co_await empty(entry);
      if (!result) co_return result;
      free_.push_back(entry);
    }
    co_return Result<>{};
  }

  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override {
    SPINDLE_CO_TRY(check_range("map", offset, length));
    const auto [block, within, part] = at(offset, length);
    Extent extent{.offset = offset, .length = part, .data = map_[block] != 0, .zero = map_[block] == 0};
    if (map_[block] != 0) extent.file_offset = place(map_[block]) + within;
    co_return extent;
  }
  Task<Result<>> resize(uint64_t) override {
    return finished(Result<>(std::unexpected(Error{.kind = ErrorKind::NotSupported, .operation = "resize"})));
  }
  Task<Result<>> close() override {
    if (std::ranges::find(dirty_, true) == dirty_.end()) co_return Result<>{};
    co_return co_await flush();
  }

 private:
  struct Place {
    uint64_t block, within, length;
  };
  Place at(uint64_t offset, uint64_t length) const {
    const uint64_t within = offset % header_.block;
    return {offset / header_.block, within, std::min(length, header_.block - within)};
  }
  uint64_t place(uint32_t entry) const { return layout_.data + (entry - 1) * header_.block; }

  Task<Result<uint32_t>> allocate(uint64_t block) {
    if (map_[block] != 0) co_return map_[block];
    if (!free_.empty()) {
      const uint32_t entry = free_.back();
      free_.pop_back();
      map_[block] = entry;
      co_return entry;
    }
    Turns::Turn turn(growth_);
    co_await turn;
    if (map_[block] != 0) co_return map_[block];
    const uint64_t needed = layout_.data + (header_.count + 1) * header_.block;
    if (file_->size() < needed) {
      auto grown = co_await file_->resize(needed + 7 * header_.block);
      if (!grown) co_return std::unexpected(std::move(grown.error()));
    }
    const auto entry = static_cast<uint32_t>(++header_.count);
    count_dirty_ = true;
    map_[block] = entry;
    if (mutation_ == ToyMutation::MapAtOnce) {
      ready_[block] = entry;
      auto header = co_await write_header();
      if (!header) co_return std::unexpected(std::move(header.error()));
      auto result = co_await write_map(ready_, block / kToyEntries);
      if (!result) co_return std::unexpected(std::move(result.error()));
    }
    co_return entry;
  }

  void unlink(uint64_t block) {
    const uint32_t entry = std::exchange(map_[block], 0);
    const bool linked = ready_[block] == entry;
    ready_[block] = 0;
    dirty_[block / kToyEntries] = true;
    // One whose first write is still under way is lost until the image is repaired.
    if (!linked) return;
    if (mutation_ == ToyMutation::ReuseTooEarly) {
      free_.push_back(entry);
    } else {
      freed_.push_back(entry);
    }
  }

  Task<Result<>> empty(uint32_t entry) {
    if (mutation_ == ToyMutation::NoZeroOnReuse) return finished(Result<>{});
    return file_->write_zeroes(place(entry), header_.block, {.unmap = true});
  }

  Task<Result<>> write_header() {
    std::array<std::byte, kSector> sector{};
    std::memcpy(sector.data(), &header_, sizeof header_);
    co_return co_await toy_io(*file_, true, 0, sector.data(), sector.size());
  }
  Task<Result<>> write_map(const std::vector<uint32_t>& map, uint64_t index) {
    std::array<uint32_t, kSector / sizeof(uint32_t)> sector{};
    const uint64_t first = index * kToyEntries;
    for (uint64_t i = 0; i < kToyEntries && first + i < map.size(); ++i) sector[i] = map[first + i];
    co_return co_await toy_io(*file_, true, (1 + index) * kSector, sector.data(), kSector);
  }

  std::shared_ptr<Node> file_;
  ToyHeader header_;
  ToyLayout layout_;
  ToyMutation mutation_;
  NodeFacts facts_;
  std::vector<uint32_t> map_;    // what readers and writers follow
  std::vector<uint32_t> ready_;  // what may be written out: the block's first data has arrived
  std::vector<bool> dirty_;
  bool count_dirty_ = false;
  std::vector<uint32_t> freed_;  // unlinked in memory
  std::vector<uint32_t> free_;   // unlinked for good, and empty
  Turns commit_;
  Turns growth_;
};

struct ToyImage {
  ToyHeader header;
  std::vector<uint32_t> map;
};

inline Error toy_corrupt(std::string detail) {
  return Error{.kind = ErrorKind::Corrupt, .operation = "open", .node = "toy", .detail = std::move(detail)};
}

inline Task<Result<ToyImage>> toy_load(Node& file) {
  if (file.size() < kSector) co_return std::unexpected(toy_corrupt("no header"));
  std::array<std::byte, kSector> sector;
  auto result = co_await toy_io(file, false, 0, sector.data(), sector.size());
  if (!result) co_return std::unexpected(std::move(result.error()));
  ToyImage image;
  std::memcpy(&image.header, sector.data(), sizeof image.header);
  if (image.header.magic != kToyMagic) co_return std::unexpected(toy_corrupt("no toy"));
  const ToyLayout layout(image.header);
  image.map.resize(layout.blocks);
  for (uint64_t i = 0; i < layout.map_sectors; ++i) {
    result = co_await toy_io(file, false, (1 + i) * kSector, sector.data(), sector.size());
    if (!result) co_return std::unexpected(std::move(result.error()));
    const uint64_t entries = std::min(kToyEntries, layout.blocks - i * kToyEntries);
    std::memcpy(&image.map[i * kToyEntries], sector.data(), entries * sizeof(uint32_t));
  }
  co_return image;
}

inline Subject toy_subject(ToyMutation mutation = ToyMutation::None, uint64_t block = 4096) {
  Subject subject{.name = "toy", .create = {}, .open = {}};
  if (mutation != ToyMutation::None) subject.name += ", " + std::string(to_string(mutation));
  subject.create = [block](std::shared_ptr<Node> file, uint64_t size) -> Task<Result<>> {
    const ToyHeader header{.magic = kToyMagic, .guest_size = size, .block = block, .count = 0};
    auto result = co_await file->resize(ToyLayout(header).data);
    if (!result) co_return result;
    std::array<std::byte, kSector> sector{};
    std::memcpy(sector.data(), &header, sizeof header);
    result = co_await toy_io(*file, true, 0, sector.data(), sector.size());
    if (!result) co_return result;
    co_return co_await file->flush();
  };
  subject.open = [mutation](std::shared_ptr<Node> file) -> Task<Result<std::shared_ptr<Node>>> {
    auto image = co_await toy_load(*file);
    if (!image) co_return std::unexpected(std::move(image.error()));
    for (const uint32_t entry : image->map) {
      if (entry > image->header.count) co_return std::unexpected(toy_corrupt("an entry beyond the count"));
    }
    co_return std::shared_ptr<Node>(
        std::make_shared<ToyNode>(std::move(file), image->header, std::move(image->map), mutation));
  };
  subject.check = [](std::shared_ptr<Node> file, Repair) -> Task<Result<CheckReport>> {
    auto image = co_await toy_load(*file);
    if (!image) co_return std::unexpected(std::move(image.error()));
    const ToyLayout layout(image->header);
    CheckReport report;
    std::vector<uint32_t> used;
    for (const uint32_t entry : image->map) {
      if (entry == 0) continue;
      used.push_back(entry);
      if (entry > image->header.count || layout.data + entry * image->header.block > file->size()) {
        ++report.corruptions;
        report.messages.push_back("an entry beyond the count or the file");
      }
    }
    std::ranges::sort(used);
    const auto doubles = std::ranges::unique(used);
    if (!doubles.empty()) {
      report.corruptions += doubles.size();
      report.messages.push_back("a block with two owners");
      used.erase(doubles.begin(), doubles.end());
    }
    report.leaks = image->header.count - std::min<uint64_t>(image->header.count, used.size());
    co_return report;
  };
  return subject;
}

}  // namespace spindle::crash::test
