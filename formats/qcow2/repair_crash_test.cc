// Repair under power cuts: at any crash point of a repair the tables show what they showed before or what
// they show afterwards, and another repair ends it. Orders that are wrong on purpose are noticed.
#include <doctest/doctest.h>

#include <functional>

#include "crash/enumerate.h"
#include "crash/image_node.h"
#include "crash/recording_medium.h"
#include "crash/run.h"
#include "formats/qcow2/check.h"
#include "formats/qcow2/create.h"
#include "formats/qcow2/table_io.h"

using namespace spindle;
using namespace spindle::qcow2;
using crash::run_now;

namespace {

constexpr uint64_t kCluster = 4096;
constexpr uint64_t kClusters = 600;  // more than an L2 table has entries
constexpr uint64_t kNowhere = uint64_t{1} << 45;

Reactor& reactor() {
  static const std::unique_ptr<Reactor> made = std::move(*Reactor::create(8));
  return *made;
}

uint64_t word_at(Node& file, uint64_t at) {
  const auto words = run_now(reactor(), read_words(file, at, 1));
  REQUIRE(words);
  return words->front();
}
void poke(Node& file, uint64_t at, uint64_t word) {
  REQUIRE(run_now(reactor(), write_words(file, at, std::span(&word, 1))));
}
Header header_of(Node& file) {
  const auto header = run_now(reactor(), read_header(file, {.tolerate_table_offsets = true}));
  REQUIRE(header);
  return *header;
}

// What the guest finds at the beginning of each of its clusters.
std::vector<uint64_t> guest(Node& file) {
  const Header header = header_of(file);
  std::vector<uint64_t> seen;
  for (uint64_t cluster = 0; cluster < kClusters; ++cluster) {
    const uint64_t table =
        word_at(file, header.l1_offset + (cluster >> header.layout.l2_bits()) * 8) & kOffsetMask;
    const uint64_t index = cluster & (header.layout.l2_entries() - 1);
    const uint64_t entry = table == 0 || table >= file.size() ? 0 : word_at(file, table + index * 8);
    const uint64_t place = entry & kOffsetMask;
    seen.push_back(place == 0 || place >= file.size() ? 0 : word_at(file, place));
  }
  return seen;
}

// An image with its clusters numbered, and `harm` done to it.
void make(Node& file, const std::function<void(Node&)>& harm) {
  CreateOptions options{.size = kClusters * kCluster};
  options.options.emplace("cluster_size", "4k");
  options.options.emplace("preallocation", "metadata");
  REQUIRE(run_now(reactor(), create(file, std::move(options))));
  const Header header = header_of(file);
  for (uint64_t cluster = 0; cluster < kClusters; ++cluster) {
    const uint64_t table =
        word_at(file, header.l1_offset + (cluster >> header.layout.l2_bits()) * 8) & kOffsetMask;
    const uint64_t index = cluster & (header.layout.l2_entries() - 1);
    poke(file, word_at(file, table + index * 8) & kOffsetMask, cluster + 1);
  }
  harm(file);
}

struct Found {
  uint64_t states = 0;
  uint64_t lost = 0;        // states in which the guest's data are not what they were
  uint64_t unmended = 0;    // states that another repair could not end
  uint64_t most_wrong = 0;  // corruptions that a check of a state found
  uint64_t unmarked = 0;    // states that are damaged, and no longer say so
};

Found explore(const std::function<void(Node&)>& harm, ImageMutation mutation) {
  crash::History history;
  auto start = std::make_shared<crash::ImageNode>(reactor(), history.base);
  make(*start, harm);
  history.base.forget_past();
  const auto before = guest(*start);
  const bool marked = header_of(*start).incompatible != 0;
  crash::RecordingMedium medium(reactor(), history, {.extends = true, .immediate = true});
  const auto mended = run_now(reactor(), check(medium, Repair::All, mutation));
  REQUIRE(mended);
  CHECK(mended->corruptions == 0);
  CHECK(mended->leaks == 0);
  const auto after = guest(medium);
  history.finish();
  crash::ContentStore contents(history.contents.get());
  crash::SectorImage image(history.base, contents);
  crash::ImageNode file(reactor(), image);
  crash::EpochCursor cursor(history, image, {});
  Found found;
  for (const crash::Position point : history.crash_points()) {
    cursor.move_to(point);
    crash::enumerate(cursor, history, image, 60, point, [&](const crash::Choices&) {
      ++found.states;
      const auto mark = image.mark();
      const auto now = guest(file);
      for (std::size_t i = 0; i < now.size(); ++i) {
        if (now[i] == before[i] || now[i] == after[i]) continue;
        ++found.lost;
        break;
      }
      const auto looked = run_now(reactor(), check(file, Repair::None));
      if (looked) found.most_wrong = std::max(found.most_wrong, looked->corruptions);
      if (marked && looked && looked->corruptions != 0 && header_of(file).incompatible == 0) ++found.unmarked;
      const auto again = run_now(reactor(), check(file, Repair::All));
      const bool ended = again && again->corruptions == 0 && again->leaks == 0 && guest(file) == after;
      if (!ended) ++found.unmended;
      image.undo(mark);
      return true;
    });
  }
  return found;
}

uint64_t table_of(Node& file) {
  return header_of(file).refcount_table_offset;
}
uint64_t first_l2(Node& file) {
  return word_at(file, header_of(file).l1_offset) & kOffsetMask;
}

}  // namespace

TEST_CASE("a repair may be cut off anywhere") {
  const std::vector<std::pair<const char*, std::function<void(Node&)>>> kinds = {
      {"counts too low", [](Node& f) { poke(f, word_at(f, table_of(f)) + 16, 0); }},
      {"leaks", [](Node& f) { poke(f, first_l2(f) + 24, 0); }},
      {"entries that point nowhere",
       [](Node& f) {
         poke(f, first_l2(f) + 24, kNowhere);
         poke(f, first_l2(f) + 800, 777);
       }},
      {"a table that lies nowhere", [](Node& f) { poke(f, header_of(f).l1_offset + 8, kNowhere); }},
      {"a cluster for two", [](Node& f) { poke(f, first_l2(f) + 24, word_at(f, first_l2(f) + 32)); }},
      {"no refcount block", [](Node& f) { poke(f, table_of(f), 0); }},
      {"no refcount table", [](Node& f) { poke(f, kRefcountTableAt, kNowhere); }},
      {"refcount block in data",
       [](Node& f) { poke(f, table_of(f), word_at(f, first_l2(f)) & kOffsetMask); }},
      {"marked as corrupt",
       [](Node& f) {
         poke(f, kIncompatibleAt, kCorrupt | kDirty);
         poke(f, first_l2(f) + 24, word_at(f, first_l2(f) + 32));
       }},
  };
  uint64_t states = 0;
  for (const auto& [name, harm] : kinds) {
    CAPTURE(std::string(name));
    const Found found = explore(harm, ImageMutation::None);
    CHECK(found.lost == 0);
    CHECK(found.unmended == 0);
    CHECK(found.unmarked == 0);
    states += found.states;
  }
  MESSAGE("crash states of repairs: ", states);
  CHECK(states > 100);
}

TEST_CASE("orders of a repair that are wrong on purpose are noticed") {
  const auto no_blocks = [](Node& f) {
    poke(f, kIncompatibleAt, kCorrupt);
    poke(f, table_of(f), 0);
  };
  const auto two_users = [](Node& f) {
    poke(f, kIncompatibleAt, kCorrupt);
    poke(f, first_l2(f) + 24, word_at(f, first_l2(f) + 32));
  };
  CHECK(explore(two_users, ImageMutation::None).unmarked == 0);
  CHECK(explore(two_users, ImageMutation::BitsClearedBeforeRest).unmarked != 0);
  CHECK(explore(no_blocks, ImageMutation::BitsClearedBeforeRest).unmarked != 0);
  // All counts are right, but the table has an entry that cannot be used.
  const auto bad_entry = [](Node& f) { poke(f, table_of(f) + 8, 777); };
  CHECK(explore(bad_entry, ImageMutation::None).most_wrong == 1);
  CHECK(explore(bad_entry, ImageMutation::SwitchBeforeCounts).most_wrong > 1);
}
