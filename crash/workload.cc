#include "crash/workload.h"

#include <algorithm>
#include <array>
#include <random>

namespace spindle::crash {
namespace {

using Kind = GuestEvent::Kind;

constexpr std::array<std::string_view, 10> kNames = {
    "sequential", "random", "overwrite", "allocate", "discard", "toggle", "resize", "fua", "batch", "mixed"};
constexpr uint64_t kLongest = 128 << 10;  // bytes of a write

// How often what is done, out of their sum.
struct Weights {
  unsigned write = 0, flush = 0, discard = 0, zero = 0, toggle = 0, resize = 0;
  unsigned fua = 0;    // of 16 writes
  unsigned near = 0;   // of 16 writes: where one was before
  unsigned small = 8;  // of 16 writes: of one to eight sectors
};

class Program {
 public:
  Program(uint64_t disk_bytes, uint64_t block, uint64_t seed)
      : size_(disk_bytes), block_(block), random_(seed) {}

  std::vector<Step> sequential(uint64_t steps) {
    uint64_t at = 0;
    while (steps_.size() < steps) {
      const uint64_t length = aligned(1 + pick(std::min(block_ * 2, kLongest)));
      if (at + length > size_) at = 0;
      write(at, std::min(length, size_ - at), false);
      at += length;
      if (pick(8) == 0) flush();
    }
    return std::move(steps_);
  }

  // A small write into each fresh block; half of the flushes wait for what was before them, as a guest's do.
  std::vector<Step> allocate(uint64_t steps) {
    const uint64_t blocks = size_ / block_;
    std::vector<uint64_t> order(blocks);
    for (uint64_t i = 0; i < blocks; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    for (uint64_t i = 0; steps_.size() < steps; ++i) {
      const uint64_t within = pick(block_ / kSector) * kSector;
      const uint64_t at = order[i % blocks] * block_ + within;
      write(at, std::min({aligned(1 + pick(8 * kSector)), block_ - within, size_ - at}), false);
      if (pick(3) == 0) flush(pick(2) == 0);
    }
    return std::move(steps_);
  }

  // Several writes side by side into one fresh block, together.
  std::vector<Step> batch(uint64_t steps) {
    while (steps_.size() < steps) {
      const uint64_t block = pick(size_ / block_) * block_;
      const uint64_t writes = 2 + pick(6);
      for (uint64_t i = 0; i < writes; ++i) {
        const uint64_t at = block + pick(block_ / kSector) * kSector;
        write(at, std::min(aligned(1 + pick(4 * kSector)), size_ - at), pick(16) == 0);
      }
      if (pick(3) == 0) flush();
    }
    return std::move(steps_);
  }

  std::vector<Step> weighted(uint64_t steps, Weights weights) {
    const uint64_t all =
        weights.write + weights.flush + weights.discard + weights.zero + weights.toggle + weights.resize;
    while (steps_.size() < steps) {
      uint64_t what = pick(all);
      const auto is = [&](unsigned weight) {
        if (what < weight) return true;
        what -= weight;
        return false;
      };
      if (is(weights.write)) {
        const auto [at, length] = range(weights);
        write(at, length, pick(16) < weights.fua);
      } else if (is(weights.flush)) {
        flush(pick(2) == 0);
      } else if (is(weights.discard)) {
        const auto [at, length] = blocks();
        steps_.push_back({.kind = Kind::Discard, .offset = at, .length = length});
      } else if (is(weights.zero)) {
        const auto [at, length] = pick(2) ? blocks() : range(weights);
        steps_.push_back({.kind = Kind::Zero, .offset = at, .length = length, .unmap = pick(2) == 0});
      } else if (is(weights.toggle)) {
        write_back_ = !write_back_;
        steps_.push_back({.kind = write_back_ ? Kind::CacheOn : Kind::CacheOff});
      } else {
        resize();
      }
    }
    return std::move(steps_);
  }

 private:
  uint64_t pick(uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }
  static uint64_t aligned(uint64_t bytes) { return (bytes + kSector - 1) / kSector * kSector; }

  void write(uint64_t offset, uint64_t length, bool fua) {
    if (length == 0) return;
    steps_.push_back({.kind = Kind::Write, .offset = offset, .length = length, .fua = fua});
    last_ = offset;
  }
  void flush(bool waits = false) { steps_.push_back({.kind = Kind::Flush, .barrier = waits}); }

  std::pair<uint64_t, uint64_t> range(const Weights& weights) {
    uint64_t at = pick(size_ / kSector) * kSector;
    if (pick(16) < weights.near && last_ < size_) at = last_;
    const bool small = pick(16) < weights.small;
    const uint64_t length = aligned(1 + pick(small ? 8 * kSector : std::min(kLongest, block_ * 3)));
    return {at, std::min(length, size_ - at)};
  }
  std::pair<uint64_t, uint64_t> blocks() {
    const uint64_t at = pick(size_ / block_) * block_;
    return {at, std::min((1 + pick(3)) * block_, size_ - at)};
  }
  void resize() {
    const uint64_t before = size_;
    const uint64_t sectors = size_ / kSector;
    uint64_t to = pick(2) ? sectors + pick(8 * block_ / kSector)
                          : sectors - pick(std::min(sectors / 4, 8 * block_ / kSector));
    to = std::max<uint64_t>(to, 4 * block_ / kSector);
    if (pick(2)) to = std::max<uint64_t>(1, to * kSector / block_) * block_ / kSector;
    size_ = to * kSector;
    if (size_ == before) size_ += kSector;
    steps_.push_back({.kind = Kind::Resize, .length = size_, .barrier = true});
  }

  uint64_t size_;
  uint64_t block_;
  std::mt19937_64 random_;
  std::vector<Step> steps_;
  uint64_t last_ = 0;
  bool write_back_ = true;
};

}  // namespace

std::span<const std::string_view> workload_names() {
  return kNames;
}

std::vector<Step> make_program(std::string_view name, uint64_t disk_bytes, uint64_t block, uint64_t steps,
                               uint64_t seed) {
  Program program(disk_bytes, block, mix(seed) + 1);
  if (name == "sequential") return program.sequential(steps);
  if (name == "allocate") return program.allocate(steps);
  if (name == "batch") return program.batch(steps);
  if (name == "random") return program.weighted(steps, {.write = 8, .flush = 1});
  if (name == "overwrite") return program.weighted(steps, {.write = 10, .flush = 2, .near = 12});
  if (name == "discard") return program.weighted(steps, {.write = 8, .flush = 2, .discard = 3, .zero = 2});
  if (name == "toggle") return program.weighted(steps, {.write = 10, .flush = 1, .toggle = 2});
  if (name == "resize") return program.weighted(steps, {.write = 10, .flush = 2, .discard = 1, .resize = 2});
  if (name == "fua") return program.weighted(steps, {.write = 10, .flush = 1, .fua = 6});
  if (name == "mixed") {
    return program.weighted(
        steps,
        {.write = 20, .flush = 3, .discard = 3, .zero = 3, .toggle = 1, .resize = 1, .fua = 2, .near = 4});
  }
  return {};
}

}  // namespace spindle::crash
