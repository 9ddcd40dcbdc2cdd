// A property test for any node: random operations against a byte array.
//
// Operations come in batches of disjoint ranges that run concurrently, so that a node which reads, modifies
// and writes more than it was asked to is caught when a neighbour changes meanwhile. Buffers are scattered
// and at odd addresses. After a discard a byte may be zero or what it was.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "block/node.h"

namespace spindle::test {

struct ModelOptions {
  uint64_t seed = 1;
  int batches = 200;
  int batch_size = 6;
  uint64_t granule = 1;       ///< offsets and lengths are multiples of this
  uint64_t longest = 40'000;  ///< bytes of one operation
  bool resize = false;
  uint64_t largest = 1 << 20;  ///< bytes, when resizing
  bool odd_memory = true;      ///< buffers at odd addresses, of odd lengths
};

class ModelCheck {
 public:
  ModelCheck(Reactor& reactor, Node& node, ModelOptions options)
      : reactor_(reactor), node_(node), options_(options), random_(options.seed) {
    data_.resize(node.size());
    loose_.resize(node.size());
    read_all(true);
  }

  void run() {
    for (int batch = 0; batch < options_.batches; ++batch) {
      run_batch();
      const auto kind = pick(20);
      if (kind == 0) CHECK(reactor_.wait(node_.flush()).has_value());
      if (kind == 1 && options_.resize) resize();
      if (kind == 2) check_map();
    }
    read_all(false);
  }

  /// Compares all of the node, as it is now, with the model.
  void check(Node& node) {
    REQUIRE(node.size() == data_.size());
    std::vector<std::byte> all(node.size());
    const iovec part{all.data(), all.size()};
    auto result = reactor_.wait(node.read(0, Buffers(std::span(&part, 1))));
    REQUIRE_MESSAGE(result.has_value(), (result ? "" : result.error()->message()));
    compare(0, all);
  }

 private:
  struct Operation {
    enum Kind { Read, Write, Zero, Unmap, Discard } kind;
    uint64_t offset;
    uint64_t length;
    std::vector<std::byte> memory;  // with the parts at odd places in it
    std::vector<iovec> parts;
    std::vector<std::byte> payload;
    bool fua = false;
  };

  uint64_t pick(uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }

  void scatter(Operation& operation) {
    constexpr uint64_t kPage = 4096;
    constexpr uint64_t kMostParts = 5;
    operation.memory.resize(operation.length + (kMostParts + 2) * kPage);
    auto* base = operation.memory.data();
    base += (kPage - reinterpret_cast<uintptr_t>(base) % kPage) % kPage;
    uint64_t at = 0;
    uint64_t left = operation.length;
    for (uint64_t count = 1 + pick(kMostParts); left != 0; count = count > 1 ? count - 1 : 1) {
      if (options_.odd_memory) at += pick(300);
      uint64_t run = count == 1 ? left : 1 + pick(left);
      if (!options_.odd_memory) run = std::min(left, (run + 511) / 512 * 512);
      operation.parts.push_back({base + at, run});
      at += run;
      if (!options_.odd_memory) at = (at + kPage - 1) / kPage * kPage;
      left -= run;
    }
  }

  void run_batch() {
    std::vector<std::unique_ptr<Operation>> batch;
    for (int i = 0; i < options_.batch_size; ++i) {
      auto operation = std::make_unique<Operation>();
      const uint64_t size = data_.size() / options_.granule;
      if (size == 0) return;
      operation->offset = pick(size) * options_.granule;
      // Half of the time right behind the one before, so that two meet inside a block.
      if (!batch.empty() && pick(2) == 0) operation->offset = batch.back()->offset + batch.back()->length;
      const uint64_t room = std::min(data_.size() - operation->offset, pick(3) ? 2000 : options_.longest);
      operation->length = (pick(room) + 1) / options_.granule * options_.granule;
      if (operation->length == 0 || operation->offset + operation->length > data_.size()) continue;
      const bool meets = std::any_of(batch.begin(), batch.end(), [&](const auto& other) {
        return operation->offset < other->offset + other->length &&
               other->offset < operation->offset + operation->length;
      });
      if (meets) continue;
      static constexpr Operation::Kind kKinds[] = {Operation::Read,   Operation::Write, Operation::Write,
                                                   Operation::Write,  Operation::Zero,  Operation::Unmap,
                                                   Operation::Discard};
      operation->kind = kKinds[pick(std::size(kKinds))];
      operation->fua = pick(4) == 0;
      if (operation->kind == Operation::Read || operation->kind == Operation::Write) scatter(*operation);
      if (operation->kind == Operation::Write) {
        operation->payload.resize(operation->length);
        for (auto& byte : operation->payload) byte = static_cast<std::byte>(random_());
        uint64_t done = 0;
        for (const iovec& part : operation->parts) {
          std::memcpy(part.iov_base, operation->payload.data() + done, part.iov_len);
          done += part.iov_len;
        }
      }
      batch.push_back(std::move(operation));
    }
    std::size_t finished = 0;
    for (auto& operation : batch) {
      spawn(start(*operation), [&finished](Result<> result) {
        CHECK_MESSAGE(result.has_value(), (result ? "" : result.error()->message()));
        ++finished;
      });
    }
    reactor_.run_until([&] { return finished == batch.size(); });
    for (auto& operation : batch) account(*operation);
  }

  Task<Result<>> start(Operation& operation) {
    const Buffers buffers(operation.parts, operation.length);
    switch (operation.kind) {
      case Operation::Read:
        return node_.read(operation.offset, buffers);
      case Operation::Write:
        return node_.write(operation.offset, buffers, {.fua = operation.fua && node_.facts().supports_fua});
      case Operation::Zero:
        return node_.write_zeroes(operation.offset, operation.length,
                                  {.fua = operation.fua && node_.facts().supports_fua});
      case Operation::Unmap:
        return node_.write_zeroes(operation.offset, operation.length, {.unmap = true});
      case Operation::Discard:
        break;
    }
    return node_.discard(operation.offset, operation.length);
  }

  void account(const Operation& operation) {
    const auto from = static_cast<std::ptrdiff_t>(operation.offset);
    const auto to = static_cast<std::ptrdiff_t>(operation.offset + operation.length);
    switch (operation.kind) {
      case Operation::Read: {
        std::vector<std::byte> got;
        for (const iovec& part : operation.parts) {
          const auto* bytes = static_cast<const std::byte*>(part.iov_base);
          got.insert(got.end(), bytes, bytes + part.iov_len);
        }
        compare(operation.offset, got);
        break;
      }
      case Operation::Write:
        std::copy(operation.payload.begin(), operation.payload.end(), data_.begin() + from);
        std::fill(loose_.begin() + from, loose_.begin() + to, false);
        break;
      case Operation::Zero:
      case Operation::Unmap:
        std::fill(data_.begin() + from, data_.begin() + to, std::byte{0});
        std::fill(loose_.begin() + from, loose_.begin() + to, false);
        break;
      case Operation::Discard:
        std::fill(loose_.begin() + from, loose_.begin() + to, true);
        break;
    }
  }

  void compare(uint64_t offset, const std::vector<std::byte>& got) {
    for (uint64_t i = 0; i < got.size(); ++i) {
      const bool same = got[i] == data_[offset + i] || (loose_[offset + i] && got[i] == std::byte{0});
      if (same) continue;
      FAIL_CHECK("byte " << offset + i << " is " << static_cast<int>(got[i]) << " and should be "
                         << static_cast<int>(data_[offset + i]) << ", seed " << options_.seed);
      return;
    }
  }

  void read_all(bool adopt) {
    std::vector<std::byte> all(data_.size());
    const iovec part{all.data(), all.size()};
    auto result = reactor_.wait(node_.read(0, Buffers(std::span(&part, 1))));
    REQUIRE_MESSAGE(result.has_value(), (result ? "" : result.error()->message()));
    if (adopt) {
      data_ = all;
    } else {
      compare(0, all);
    }
  }

  void resize() {
    const uint64_t size = (1 + pick(options_.largest)) / options_.granule * options_.granule;
    auto result = reactor_.wait(node_.resize(size));
    REQUIRE_MESSAGE(result.has_value(), (result ? "" : result.error()->message()));
    REQUIRE(node_.size() == size);
    data_.resize(size, std::byte{0});
    loose_.resize(size, false);
  }

  // What is said to read as zeroes does, and the runs cover everything.
  void check_map() {
    for (uint64_t at = 0; at < data_.size();) {
      auto extent = reactor_.wait(node_.map(at, data_.size() - at));
      REQUIRE(extent.has_value());
      REQUIRE(extent->offset == at);
      REQUIRE(extent->length > 0);
      REQUIRE(extent->length <= data_.size() - at);
      if (extent->zero) {
        for (uint64_t i = at; i < at + extent->length; ++i) {
          if (!loose_[i] && data_[i] != std::byte{0}) {
            FAIL_CHECK("map says zero at " << i);
            break;
          }
        }
      }
      at += extent->length;
    }
  }

  Reactor& reactor_;
  Node& node_;
  ModelOptions options_;
  std::mt19937_64 random_;
  std::vector<std::byte> data_;
  std::vector<bool> loose_;
};

}  // namespace spindle::test
