// Contents and the image that can be taken back.
#include <doctest/doctest.h>

#include <random>

#include "crash/image.h"

namespace spindle::crash {
namespace {

TEST_CASE("content: equal contents have one number, zeroes have 0") {
  ContentStore store;
  Sector a, b{};
  fill_pattern(a.data(), 7, 3);
  const ContentId id = store.intern(a.data());
  CHECK(id != kZeroContent);
  CHECK(store.intern(a.data()) == id);
  CHECK(store.find(a.data()) == id);
  CHECK(store.intern(b.data()) == kZeroContent);
  ContentStore top(&store);
  CHECK(top.bytes(id) == store.bytes(id));
  const auto mark = top.mark();
  fill_pattern(b.data(), 8, 3);
  const ContentId pushed = top.push(b.data());
  CHECK(pushed == store.count());
  CHECK(top.hash(pushed) == hash_of(b.data()));
  top.release(mark);
  CHECK(top.count() == store.count());
}

TEST_CASE("content: a pattern says where it came from, and a mixture of two says so") {
  Sector sector;
  fill_pattern(sector.data(), 1234, 56);
  Origin origin = origin_of(sector.data());
  CHECK(origin.kind == Origin::Kind::Pattern);
  CHECK(origin.sector == 1234);
  CHECK(origin.write == 56);
  Sector other;
  fill_pattern(other.data(), 1234, 57);
  std::copy(other.begin() + 256, other.end(), sector.begin() + 256);
  CHECK(origin_of(sector.data()).kind == Origin::Kind::Torn);
  CHECK(origin_of(Sector{}.data()).kind == Origin::Kind::Zero);
  sector.fill(std::byte{1});
  CHECK(origin_of(sector.data()).kind == Origin::Kind::Unknown);
}

// Everything at once against plain bytes: writes of any alignment, zeroes, sizes, marks and taking back.
TEST_CASE("image: agrees with a byte array, and undo brings back content, size and hash") {
  constexpr uint64_t kBytes = 200 * kSector;
  ContentStore base;
  ContentStore contents(&base);
  SectorImage image(contents);
  std::vector<std::byte> model;
  std::mt19937_64 random(5);
  const auto step = [&] {
    const uint64_t offset = random() % kBytes, length = random() % (kBytes - offset) % 3000;
    switch (random() % 4) {
      case 0: {
        const uint64_t size = random() % kBytes;
        image.resize(size);
        model.resize(size);
        return;
      }
      case 1: {
        const uint64_t to = std::min<uint64_t>(offset + length, model.size());
        if (offset >= to) return;
        image.zero(offset, to - offset);
        std::fill(model.begin() + static_cast<std::ptrdiff_t>(offset),
                  model.begin() + static_cast<std::ptrdiff_t>(to), std::byte{0});
        return;
      }
      default: {
        std::vector<std::byte> bytes(length);
        for (auto& byte : bytes) byte = static_cast<std::byte>(random());
        image.extend_to(offset + length);
        if (model.size() < offset + length) model.resize(offset + length);
        image.write(offset, bytes.data(), length);
        std::copy(bytes.begin(), bytes.end(), model.begin() + static_cast<std::ptrdiff_t>(offset));
      }
    }
  };
  const auto same = [&] {
    REQUIRE(image.size() == model.size());
    std::vector<std::byte> bytes(model.size());
    image.read(0, bytes.data(), bytes.size());
    CHECK(bytes == model);
    // The hash says the same of an image made in another way.
    ContentStore fresh;
    SectorImage other(fresh);
    other.resize(model.size());
    other.write(0, model.data(), model.size());
    CHECK(other.hash() == image.hash());
  };
  for (int round = 0; round < 60; ++round) {
    for (int i = 0; i < 5; ++i) step();
    same();
    const auto mark = image.mark();
    const uint64_t hash = image.hash();
    const auto before = model;
    for (int i = 0; i < 10; ++i) step();
    same();
    image.undo(mark);
    model = before;
    CHECK(image.hash() == hash);
    same();
  }
}

TEST_CASE("image: data and holes are found wherever they begin") {
  ContentStore contents;
  SectorImage image(contents);
  image.resize(1000 * kSector);
  Sector sector;
  fill_pattern(sector.data(), 1, 1);
  const ContentId id = contents.intern(sector.data());
  CHECK(image.next_data(0, 1000) == 1000);
  image.set(300, id);
  image.set(301, id);
  CHECK(image.next_data(0, 1000) == 300);
  CHECK(image.next_hole(300, 1000) == 302);
  CHECK(image.next_data(302, 1000) == 1000);
  CHECK(image.next_data(0, 200) == 200);
  image.resize(301 * kSector);
  image.resize(1000 * kSector);
  CHECK(image.at(301) == kZeroContent);
}

}  // namespace
}  // namespace spindle::crash
