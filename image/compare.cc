#include "image/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "image/aligned_buffer.h"
#include "image/zero_scan.h"

namespace spindle::image {
namespace {

constexpr uint64_t kPiece = 2 << 20;  // bytes read at once of each
constexpr uint64_t kSector = 512;     // what differs is named by its sector

// The first sector of `bytes` that is not zero.
std::optional<uint64_t> first_data(std::span<const std::byte> bytes) {
  if (all_zero(bytes)) return std::nullopt;
  for (uint64_t at = 0;; at += kSector) {
    if (!all_zero(bytes.subspan(at, std::min<uint64_t>(kSector, bytes.size() - at)))) return at;
  }
}

// The first sector in which they differ; they are equally long.
std::optional<uint64_t> first_difference(std::span<const std::byte> one, std::span<const std::byte> other) {
  if (std::memcmp(one.data(), other.data(), one.size()) == 0) return std::nullopt;
  for (uint64_t at = 0;; at += kSector) {
    const uint64_t length = std::min<uint64_t>(kSector, one.size() - at);
    if (std::memcmp(one.data() + at, other.data() + at, length) != 0) return at;
  }
}

Comparison broken(int status, BoxedError error) {
  return {.status = status, .text = {}, .error = std::move(*error)};
}

Comparison mismatch_at(uint64_t offset) {
  return {.status = kCompareDifferent, .text = fmt::format("Content mismatch at offset {}!\n", offset)};
}

class Comparer {
 public:
  Comparer(Disk& first, Disk& second, bool strict, Progress& progress)
      : first_(first), second_(second), strict_(strict), progress_(progress) {}

  Task<Comparison> run() {
    auto one = AlignedBuffer::allocate(kPiece), other = AlignedBuffer::allocate(kPiece);
    if (!one || !other) co_return broken(kCompareNotRead, std::move((one ? other : one).error()));
    buffers_[0] = std::move(*one);
    buffers_[1] = std::move(*other);
    if (strict_ && first_.size() != second_.size())
      co_return Comparison{.status = kCompareDifferent, .text = "Strict mode: Image size mismatch!\n"};
    whole_ = std::max(first_.size(), second_.size());
    const uint64_t common = std::min(first_.size(), second_.size());
    for (uint64_t position = 0; position < common;) {
      auto found = co_await compare_next(position, common);
      if (found) co_return std::move(*found);
    }
    std::string text;
    if (first_.size() != second_.size()) {
      text = "Warning: Image size mismatch!\n";
      auto found = co_await only_zeroes_behind(first_.size() > second_.size() ? first_ : second_, common);
      if (found) {
        found->text = text + found->text;
        co_return std::move(*found);
      }
    }
    progress_.set(1, 1);
    co_return Comparison{.text = text + "Images are identical.\n"};
  }

 private:
  // The next stretch from `position` on, which moves behind it. Nothing if it is the same in both.
  Task<std::optional<Comparison>> compare_next(uint64_t& position, uint64_t end) {
    const auto one = co_await first_.node().map(position, end - position);
    const auto other = co_await second_.node().map(position, end - position);
    for (const auto* extent : {&one, &other}) {
      if (auto wrong = check(*extent, position, end)) co_return wrong;
    }
    if (strict_ && (one->zero != other->zero || one->data != other->data)) {
      co_return Comparison{.status = kCompareDifferent,
                           .text = fmt::format("Strict mode: Offset {} block status mismatch!\n", position)};
    }
    uint64_t length = std::min(one->length, other->length);
    if (!one->zero || !other->zero) {
      length = std::min(length, kPiece);
      for (const bool second : {false, true}) {
        if (second ? other->zero : one->zero) continue;
        if (auto failed = co_await read(second, position, length)) co_return failed;
      }
      const auto bytes = [&](bool second) {
        return std::span<const std::byte>(buffers_[second ? 1 : 0].bytes()).first(length);
      };
      const auto differs = one->zero     ? first_data(bytes(true))
                           : other->zero ? first_data(bytes(false))
                                         : first_difference(bytes(false), bytes(true));
      if (differs) co_return mismatch_at(position + *differs);
    }
    position += length;
    progress_.set(position, whole_);
    co_return std::nullopt;
  }

  Task<std::optional<Comparison>> only_zeroes_behind(Disk& disk, uint64_t position) {
    const bool second = &disk == &second_;
    while (position < disk.size()) {
      const auto extent = co_await disk.node().map(position, disk.size() - position);
      if (auto wrong = check(extent, position, disk.size())) co_return wrong;
      uint64_t length = extent->length;
      if (!extent->zero) {
        length = std::min(length, kPiece);
        if (auto failed = co_await read(second, position, length)) co_return failed;
        if (const auto data = first_data(buffers_[second ? 1 : 0].bytes().first(length)))
          co_return mismatch_at(position + *data);
      }
      position += length;
      progress_.set(position, whole_);
    }
    co_return std::nullopt;
  }

  Task<std::optional<Comparison>> read(bool second, uint64_t offset, uint64_t length) {
    Disk& disk = second ? second_ : first_;
    const iovec part = buffers_[second ? 1 : 0].part(0, length);
    const Buffers memory(std::span(&part, 1), length);
    auto result = co_await disk.read(offset, memory);
    if (result) co_return std::nullopt;
    co_return broken(kCompareNotRead, std::move(result.error()));
  }

  static std::optional<Comparison> check(const Result<Extent>& extent, uint64_t position, uint64_t end) {
    if (!extent) return broken(kCompareNotMapped, extent.error());
    if (extent->length != 0 && extent->length <= end - position) return std::nullopt;
    return broken(kCompareNotMapped,
                  Error{.operation = "map", .offset = position, .detail = "the answer makes no sense"});
  }

  Disk& first_;
  Disk& second_;
  bool strict_;
  Progress& progress_;
  AlignedBuffer buffers_[2];
  uint64_t whole_ = 0;
};

}  // namespace

Task<Comparison> compare_disks(Disk& first, Disk& second, bool strict, Progress& progress) {
  Comparer comparer(first, second, strict, progress);
  auto running = comparer.run();
  co_return co_await running;
}

}  // namespace spindle::image
