// A toy format that needs all the commit has: every write goes to a place that was free, so what is durable
// is never overwritten; the place it replaces is free again only when nothing durable points to it. So its
// data must be there before the pointer, unlike a VDI block's, and releasing early shows what was written to
// another block.
//
//   sector 0   "COW!", the number of places ever used (an upper bound, as VDI's); from byte 8 on three
//              texts that end in zero bytes: a backing file, its format, a data file, "" for none
//   map        a number of 32 bits for each block, eight to a sector: its place plus one, or 0
//   places     one sector each, twice as many as blocks
//
// Blocks are sectors. What no entry names is read from the backing file, or is zeroes. The data file, where
// there is one, is only held open: it is there to test who may open it. Nothing is lost when it is opened
// again: what no entry names is free.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "block/format_registry.h"
#include "block/little_endian.h"
#include "formats/commit/commit.h"

namespace spindle::test {

/// The files that a toy image names.
struct CowToyNames {
  std::string backing = {}, format = {}, data_file = {};
};

class CowToy final : public Node, private Commit::Owner {
 public:
  static constexpr uint64_t kSector = 512;
  static constexpr uint32_t kPerSector = 8;
  static constexpr std::size_t kNamesAt = 8;
  using Names = CowToyNames;

  struct Layout {
    uint32_t blocks;
    explicit Layout(uint64_t size) : blocks(static_cast<uint32_t>(size / kSector)) {}
    uint64_t map_sectors() const { return (blocks + kPerSector - 1) / kPerSector; }
    uint64_t data() const { return (1 + map_sectors()) * kSector; }
    uint32_t places() const { return 2 * blocks; }
    uint64_t file_size() const { return data() + places() * kSector; }
    static Layout of_file(uint64_t size) {
      for (uint64_t blocks = 1;; ++blocks) {
        if (Layout layout(blocks * kSector); layout.file_size() >= size) return layout;
      }
    }
    uint64_t offset_of(uint32_t place) const { return data() + place * kSector; }
  };

  static Task<Result<>> create(std::shared_ptr<Node> file, uint64_t size, Names names = {}) {
    const Layout layout(size);
    SPINDLE_CO_TRY(co_await file->resize(layout.file_size()));
    std::array<std::byte, kSector> header{};
    std::memcpy(header.data(), "COW!", 4);
    std::size_t at = kNamesAt;
    for (const std::string* name : {&names.backing, &names.format, &names.data_file}) {
      if (name->size() >= header.size() - at) co_return std::unexpected(Error{.kind = ErrorKind::Invalid});
      std::memcpy(header.data() + at, name->data(), name->size());
      at += name->size() + 1;
    }
    const iovec part{header.data(), header.size()};
    SPINDLE_CO_TRY(co_await file->write(0, Buffers(std::span(&part, 1)), {}));
    co_return co_await file->flush();
  }

  static Task<Result<std::shared_ptr<Node>>> open(std::shared_ptr<Node> file, Commit::Options options,
                                                  OtherFiles* others = nullptr) {
    std::shared_ptr<CowToy> toy(new CowToy(std::move(file), options));
    auto loaded = co_await toy->load();
    if (!loaded) co_return std::unexpected(std::move(loaded.error()));
    auto named = co_await toy->open_others(others);
    if (!named) co_return std::unexpected(std::move(named.error()));
    co_return std::shared_ptr<Node>(std::move(toy));
  }

  /// Corruptions: two blocks with one place, a place at or above the count. Leaks do not exist.
  static Task<Result<CheckReport>> check(std::shared_ptr<Node> file) {
    CowToy toy(std::move(file), {});
    auto loaded = co_await toy.load();
    if (!loaded) co_return std::unexpected(std::move(loaded.error()));
    CheckReport report;
    std::set<uint32_t> seen;
    for (const uint32_t entry : toy.entries_) {
      if (entry == 0) continue;
      if (!seen.insert(entry).second) ++report.corruptions;
      if (entry > toy.count_) ++report.corruptions;
    }
    if (report.corruptions != 0) report.messages = {"a place is used twice, or not counted"};
    co_return report;
  }

  const NodeFacts& facts() const override { return facts_; }
  uint64_t size() const override { return layout_.blocks * kSector; }

  Task<Result<>> read(uint64_t offset, Buffers buffers) override {
    SPINDLE_CO_TRY(check_range("read", offset, buffers.size));
    std::vector<std::byte> flat(buffers.size);
    for (uint64_t at = 0; at < buffers.size; at += kSector) {
      const uint32_t entry = entries_[(offset + at) / kSector];
      const iovec part{flat.data() + at, kSector};
      if (entry == 0) {
        if (backing_ && offset + at + kSector <= backing_->size())
          SPINDLE_CO_TRY(co_await backing_->read(offset + at, Buffers(std::span(&part, 1))));
        continue;
      }
      SPINDLE_CO_TRY(co_await file_->read(layout_.offset_of(entry - 1), Buffers(std::span(&part, 1))));
    }
    uint64_t done = 0;
    for (const iovec& part : buffers.parts) {
      std::memcpy(part.iov_base, flat.data() + done, part.iov_len);
      done += part.iov_len;
    }
    co_return Result<>{};
  }

  Task<Result<>> write(uint64_t offset, Buffers buffers, WriteFlags) override {
    std::vector<std::byte> flat;
    for (const iovec& part : buffers.parts) {
      const auto* bytes = static_cast<const std::byte*>(part.iov_base);
      flat.insert(flat.end(), bytes, bytes + part.iov_len);
    }
    return put(offset, std::move(flat));
  }
  Task<Result<>> write_zeroes(uint64_t offset, uint64_t length, ZeroFlags) override {
    return put(offset, std::vector<std::byte>(length));
  }
  Task<Result<>> discard(uint64_t, uint64_t) override { return finished(Result<>{}); }
  Task<Result<>> flush() override { return commit_.flush(); }
  Task<Result<Extent>> map(uint64_t offset, uint64_t length) override {
    SPINDLE_CO_TRY(check_range("map", offset, length));
    length = std::min(length, kSector - offset % kSector);
    if (entries_[offset / kSector] != 0) co_return Extent{.offset = offset, .length = length, .data = true};
    if (!backing_ || offset + length > backing_->size())
      co_return Extent{.offset = offset, .length = length, .zero = true};
    auto below = co_await backing_->map(offset, length);
    if (below) ++below->depth;
    co_return below;
  }
  Task<Result<>> resize(uint64_t) override {
    return finished(Result<>(std::unexpected(Error{.kind = ErrorKind::NotSupported, .operation = "resize"})));
  }
  Task<Result<>> close() override {
    co_await commit_.close();
    Result<> result;
    if (!dirty_.empty() && !commit_.abandoned()) result = co_await commit_.flush();
    for (Node* node : {backing_.get(), data_file_.get(), file_.get()}) {
      if (!node) continue;
      auto closed = co_await node->close();
      if (result) result = closed;
    }
    co_return result;
  }
  void abandon() override { commit_.abandon(); }
  Node* child() const override { return file_.get(); }
  Node* backing() const override { return backing_.get(); }
  Node* data_file() const { return data_file_.get(); }

  static Format format() {
    Format toy;
    toy.name = "toy";
    toy.open = [](std::shared_ptr<Node> file, OpenOptions options) {
      return CowToy::open(std::move(file), {.idle = {}}, options.others);
    };
    toy.probe = [](std::span<const std::byte> head) {
      return head.size() >= 4 && std::memcmp(head.data(), "COW!", 4) == 0;
    };
    return toy;
  }

 private:
  CowToy(std::shared_ptr<Node> file, Commit::Options options)
      : Node(file->reactor()),
        file_(std::move(file)),
        layout_(Layout::of_file(file_->size())),
        commit_(*file_, *this, options) {
    facts_.name = "cow toy";
    facts_.cluster_size = kSector;
  }

  Task<Result<>> load() {
    std::vector<std::byte> head(layout_.data());
    const iovec part{head.data(), head.size()};
    SPINDLE_CO_TRY(co_await file_->read(0, Buffers(std::span(&part, 1))));
    if (std::memcmp(head.data(), "COW!", 4) != 0) {
      co_return std::unexpected(Error{.kind = ErrorKind::Corrupt, .operation = "open"});
    }
    count_ = get32(head.data() + 4);
    std::copy_n(head.begin(), kSector, header_.begin());
    header_.back() = std::byte{0};
    entries_.resize(layout_.blocks);
    std::vector<bool> used(layout_.places());
    for (uint32_t block = 0; block < layout_.blocks; ++block) {
      entries_[block] = get32(head.data() + at_of(block));
      if (entries_[block] > layout_.places()) {
        co_return std::unexpected(Error{.kind = ErrorKind::Corrupt, .operation = "open"});
      }
      if (entries_[block] != 0) used[entries_[block] - 1] = true;
    }
    for (uint32_t place = layout_.places(); place-- != 0;) {
      if (!used[place]) free_.push_back(place);
    }
    co_return Result<>{};
  }

  Task<Result<>> open_others(OtherFiles* others) {
    std::array<std::string, 3> names;
    std::size_t at = kNamesAt;
    for (std::string& name : names) {
      if (at < kSector) name = reinterpret_cast<const char*>(header_.data()) + at;
      at += name.size() + 1;
    }
    OtherFile below{.name = names[0]};
    if (!names[1].empty()) below.format = names[1];
    if (!others && (!names[0].empty() || !names[2].empty()))
      co_return std::unexpected(Error{.kind = ErrorKind::NotSupported, .operation = "open"});
    if (!names[0].empty()) {
      auto opening = others->open_backing(std::move(below));
      auto backing = co_await opening;
      if (!backing) co_return std::unexpected(std::move(backing.error()));
      backing_ = std::move(*backing);
    }
    if (names[2].empty()) co_return Result<>{};
    auto opening = others->open_data_file(OtherFile{.name = names[2]});
    auto data = co_await opening;
    if (data) {
      data_file_ = std::move(*data);
      co_return Result<>{};
    }
    if (backing_) static_cast<void>(co_await backing_->close());
    co_return std::unexpected(std::move(data.error()));
  }

  static uint64_t at_of(uint32_t block) {
    return kSector + block / kPerSector * kSector + block % kPerSector * sizeof(uint32_t);
  }

  Task<Result<>> put(uint64_t offset, std::vector<std::byte> flat) {
    SPINDLE_CO_TRY(check_range("write", offset, flat.size()));
    for (uint64_t at = 0; at < flat.size(); at += kSector) {
      auto stored = co_await put_sector(static_cast<uint32_t>((offset + at) / kSector), flat.data() + at);
      if (!stored) co_return stored;
    }
    co_return co_await commit_.changed();
  }

  Task<Result<>> put_sector(uint32_t block, std::byte* bytes) {
    while (free_.empty()) SPINDLE_CO_TRY(co_await commit_.flush());
    const uint32_t place = free_.back();
    free_.pop_back();
    const iovec part{bytes, kSector};
    SPINDLE_CO_TRY(co_await file_->write(layout_.offset_of(place), Buffers(std::span(&part, 1)), {}));
    // Another write of the same block may have been faster: the one that ends last counts.
    if (entries_[block] != 0) leaving_.push_back(entries_[block] - 1);
    entries_[block] = place + 1;
    dirty_.insert(block / kPerSector);
    wanted_ = std::max(wanted_, place + 1);
    co_return Result<>{};
  }

  Commit::Batch freeze() override {
    Commit::Batch batch;
    if (wanted_ > count_) {
      frozen_count_ = count_;
      count_ = wanted_;
      std::vector<std::byte> header(header_.begin(), header_.end());
      put32(header.data() + 4, count_);
      batch.before.push_back({.offset = 0, .bytes = std::move(header)});
    }
    for (const uint32_t sector : dirty_) {
      std::vector<std::byte> bytes(kSector);
      for (uint32_t i = 0; i < kPerSector && sector * kPerSector + i < layout_.blocks; ++i)
        put32(bytes.data() + i * sizeof(uint32_t), entries_[sector * kPerSector + i]);
      batch.pointers.push_back({.offset = kSector + sector * kSector, .bytes = std::move(bytes)});
    }
    batch.barrier = !dirty_.empty();
    frozen_dirty_.merge(dirty_);
    dirty_.clear();
    frozen_leaving_.insert(frozen_leaving_.end(), leaving_.begin(), leaving_.end());
    leaving_.clear();
    return batch;
  }
  void published() override {
    free_.insert(free_.end(), frozen_leaving_.begin(), frozen_leaving_.end());
    frozen_leaving_.clear();
    frozen_dirty_.clear();
    frozen_count_.reset();
  }
  void restore() override {
    dirty_.merge(frozen_dirty_);
    frozen_dirty_.clear();
    leaving_.insert(leaving_.end(), frozen_leaving_.begin(), frozen_leaving_.end());
    frozen_leaving_.clear();
    if (frozen_count_) count_ = *frozen_count_;
    frozen_count_.reset();
  }
  uint64_t waiting_bytes() const override { return dirty_.size() * kSector; }

  std::shared_ptr<Node> file_, backing_, data_file_;
  std::array<std::byte, kSector> header_{};
  Layout layout_;
  NodeFacts facts_;
  Commit commit_;
  std::vector<uint32_t> entries_, free_, leaving_, frozen_leaving_;
  std::set<uint32_t> dirty_, frozen_dirty_;
  uint32_t count_ = 0, wanted_ = 0;
  std::optional<uint32_t> frozen_count_;
};

}  // namespace spindle::test
