// What a guest may find: the clauses of docs/durability.md as legal contents.
#include "crash/guest_model.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

namespace spindle::crash {
namespace {

using Kind = GuestEvent::Kind;

// One sector's life, told by events with their positions; `0` is zeroes, n is write n.
struct Story {
  History history;
  uint32_t writes = 0;

  Story() {
    history.has_guest = true;
    history.guest_size = 16 * kSector;
    history.end = 1000;
  }
  Story& add(GuestEvent event) {
    if (event.kind == Kind::Write) event.write = ++writes;
    if (event.kind == Kind::Write || event.kind == Kind::Zero || event.kind == Kind::Discard) {
      event.length = kSector;
      Sector bytes;
      fill_pattern(bytes.data(), 0, writes);
      history.contents->intern(bytes.data());
    }
    history.guest.push_back(event);
    return *this;
  }
  std::set<uint32_t> legal(Position at, uint64_t sector = 0) {
    history.finish();
    GuestModel model(history);
    model.move_to(at);
    std::set<uint32_t> found;
    for (const ContentId id : model.legal(sector)) found.insert(origin_of(history.contents->bytes(id)).write);
    return found;
  }
  std::set<uint64_t> sizes(Position at) {
    GuestModel model(history);
    model.move_to(at);
    return {model.legal_sizes().begin(), model.legal_sizes().end()};
  }
};
using Legal = std::set<uint32_t>;

TEST_CASE("model, D1: a write may be lost until a flush that began after it completed has completed") {
  Story story;
  story.add({.kind = Kind::Write, .submitted = 10, .completed = 20});
  story.add({.kind = Kind::Flush, .submitted = 15, .completed = 25});  // began too early
  story.add({.kind = Kind::Flush, .submitted = 30, .completed = 40});
  CHECK(story.legal(10) == Legal{0});
  CHECK(story.legal(11) == Legal{0, 1});
  CHECK(story.legal(30) == Legal{0, 1});
  CHECK(story.legal(40) == Legal{0, 1});
  CHECK(story.legal(41) == Legal{1});
}

TEST_CASE("model: two writes in flight together may be in either order, for good") {
  Story story;
  story.add({.kind = Kind::Write, .submitted = 10, .completed = 20});
  story.add({.kind = Kind::Write, .submitted = 12, .completed = 18});
  story.add({.kind = Kind::Write, .submitted = 50, .completed = 60});
  story.add({.kind = Kind::Flush, .submitted = 30, .completed = 40});
  CHECK(story.legal(45) == Legal{1, 2});
  CHECK(story.legal(55) == Legal{1, 2, 3});
}

TEST_CASE("model, D2: with the cache off and with FUA durable at completion") {
  Story story;
  story.history.starts_write_back = false;
  story.add({.kind = Kind::Write, .submitted = 10, .completed = 20});
  CHECK(story.legal(20) == Legal{0, 1});
  CHECK(story.legal(21) == Legal{1});
  story.add({.kind = Kind::CacheOn, .submitted = 30, .completed = 31});
  story.add({.kind = Kind::Write, .submitted = 40, .completed = 50});
  CHECK(story.legal(60) == Legal{1, 2});
  story.add({.kind = Kind::Write, .fua = true, .submitted = 70, .completed = 80});
  CHECK(story.legal(81) == Legal{3});
}

TEST_CASE("model, D3: turning the cache off covers what completed before it has completed") {
  Story story;
  story.add({.kind = Kind::Write, .submitted = 10, .completed = 20});
  story.add({.kind = Kind::Write, .submitted = 25, .completed = 35});
  story.add({.kind = Kind::CacheOff, .submitted = 30, .completed = 40});
  CHECK(story.legal(39) == Legal{0, 1, 2});
  CHECK(story.legal(41) == Legal{2});
  story.add({.kind = Kind::Write, .submitted = 45, .completed = 55});
  CHECK(story.legal(56) == Legal{3});
  story.add({.kind = Kind::CacheOff, .failed = true, .submitted = 60, .completed = 70});
  CHECK(story.legal(71) == Legal{3});
}

TEST_CASE("model: a toggle that failed promises nothing, a write that failed may be there") {
  Story story;
  story.add({.kind = Kind::Write, .failed = true, .submitted = 10, .completed = 20});
  story.add({.kind = Kind::Flush, .submitted = 30, .completed = 40});
  story.add({.kind = Kind::CacheOff, .failed = true, .submitted = 41, .completed = 42});
  CHECK(story.legal(50) == Legal{0, 1});
  story.add({.kind = Kind::Write, .submitted = 51, .completed = 52});
  CHECK(story.legal(60) == Legal{0, 1, 2});
}

TEST_CASE("model, D7: zeroes are a write, a discard leaves the old or zeroes") {
  Story story;
  story.add({.kind = Kind::Write, .submitted = 10, .completed = 20});
  story.add({.kind = Kind::Flush, .submitted = 21, .completed = 22});
  story.add({.kind = Kind::Discard, .submitted = 30, .completed = 31});
  story.add({.kind = Kind::Flush, .submitted = 32, .completed = 33});
  CHECK(story.legal(34) == Legal{0, 1});
  story.add({.kind = Kind::Zero, .submitted = 40, .completed = 41});
  CHECK(story.legal(45) == Legal{0, 1});
  story.add({.kind = Kind::Flush, .submitted = 50, .completed = 51});
  CHECK(story.legal(52) == Legal{0});
}

TEST_CASE("model: a size may be the old or the new one until it is durable; what is cut off is zeroes") {
  Story story;
  story.add({.kind = Kind::Write, .submitted = 10, .completed = 20});
  story.add({.kind = Kind::Flush, .submitted = 21, .completed = 22});
  story.add({.kind = Kind::Resize, .offset = 16 * kSector, .length = 0, .submitted = 30, .completed = 31});
  CHECK(story.sizes(30) == std::set<uint64_t>{16 * kSector});
  CHECK(story.sizes(31) == std::set<uint64_t>{0, 16 * kSector});
  // Whoever finds the old size finds what was there.
  CHECK(story.legal(32) == Legal{1});
  story.add({.kind = Kind::Flush, .submitted = 40, .completed = 41});
  CHECK(story.sizes(42) == std::set<uint64_t>{0});
  CHECK(story.legal(42) == Legal{0});
}

TEST_CASE("model: what the disk held at the start is legal until something durable has replaced it") {
  Story story;
  Sector bytes;
  fill_pattern(bytes.data(), 3, 9);
  story.history.guest_start.emplace_back(3, story.history.contents->intern(bytes.data()));
  CHECK(story.legal(1, 3) == Legal{9});
  CHECK(story.legal(1, 4) == Legal{0});
  story.add({.kind = Kind::Resize, .offset = 16 * kSector, .length = 0, .submitted = 5, .completed = 6});
  CHECK(story.legal(7, 3) == Legal{9});
  story.add({.kind = Kind::Resize, .offset = 0, .length = 16 * kSector, .submitted = 8, .completed = 9});
  CHECK(story.legal(10, 3) == Legal{0, 9});
  story.add({.kind = Kind::Flush, .submitted = 11, .completed = 12});
  CHECK(story.legal(13, 3) == Legal{0});
}

}  // namespace
}  // namespace spindle::crash
