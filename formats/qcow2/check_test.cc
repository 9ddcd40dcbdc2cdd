// Check and repair: what qemu-img finds is found, what was damaged is mended, and the guest's data stay.
#include "formats/qcow2/check.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "block/big_endian.h"
#include "block/protocols/file_node.h"
#include "block/test_support/environment.h"
#include "formats/qcow2/create.h"
#include "formats/qcow2/table_io.h"

using namespace spindle;
using namespace spindle::qcow2;

namespace {

struct Image {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create());
  test::TempDir dir;
  std::string path = dir.file("image");

  bool make(const std::string& script) const {
    return test::run_command("cd " + dir.path() + " && set -e; " + script).status == 0;
  }
  template <typename T>
  T with(std::function<Task<T>(Node&)> work, bool read_only = false) {
    auto node = FileNode::open(*reactor, {.path = path, .read_only = read_only, .grows = true});
    REQUIRE(node);
    T result = reactor->wait(work(**node));
    REQUIRE(reactor->wait((*node)->close()));
    return result;
  }
  CheckReport check(Repair repair = Repair::None) {
    auto report = with<Result<CheckReport>>([repair](Node& file) { return qcow2::check(file, repair); },
                                            repair == Repair::None);
    REQUIRE_MESSAGE(report, (report ? "" : report.error()->message()));
    return *report;
  }
  Header header() {
    auto found =
        with<Result<Header>>([](Node& file) { return read_header(file, {.tolerate_table_offsets = true}); });
    REQUIRE(found);
    return *found;
  }
  uint64_t word(uint64_t at) {
    auto words = with<Result<std::vector<uint64_t>>>([at](Node& file) { return read_words(file, at, 1); });
    REQUIRE(words);
    return words->front();
  }
  void poke(uint64_t at, uint64_t value) {
    std::array<std::byte, 8> bytes;
    big_endian::put64(bytes.data(), value);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.write(reinterpret_cast<const char*>(bytes.data()), 8);
  }
  uint64_t first_l2() { return word(header().l1_offset) & kOffsetMask; }
};

// The numbers that qemu-img counts, and ours, as one text each.
std::string theirs(const std::string& path) {
  const auto said =
      test::run_command("cd $(dirname " + path + ") && (qemu-img check --output=json image 2>/dev/null)");
  const auto json = nlohmann::json::parse(said.output, nullptr, false);
  if (json.is_discarded()) return "none: " + said.output;
  const auto number = [&](const char* key) { return json.value(key, uint64_t{0}); };
  return fmt::format("corruptions {} leaks {} total {} allocated {} fragmented {} compressed {} end {}",
                     number("corruptions"), number("leaks"), number("total-clusters"),
                     number("allocated-clusters"), number("fragmented-clusters"),
                     number("compressed-clusters"), number("image-end-offset"));
}
std::string ours(const CheckReport& report) {
  return fmt::format("corruptions {} leaks {} total {} allocated {} fragmented {} compressed {} end {}",
                     report.corruptions, report.leaks, report.total_clusters, report.allocated_clusters,
                     report.fragmented_clusters, report.compressed_clusters, report.image_end_offset);
}

constexpr const char* kMake =
    "qemu-img create -q -f qcow2 image 8M; qemu-io -c 'write -P 1 0 2M' -c 'write -P 2 5M 64k' -c 'write -P "
    "3 3M "
    "64k' image; ";

void is_sound(Image& image) {
  const auto report = image.check();
  CHECK(report.corruptions == 0);
  CHECK(report.leaks == 0);
  const auto said = test::run_command("qemu-img check " + image.path);
  CHECK_MESSAGE(said.status == 0, said.output);
}

}  // namespace

TEST_CASE("sound images of every kind are sound, and counted as qemu-img counts them") {
  if (!test::have_program("qemu-img")) return test::skipped("no qemu-img");
  for (
      const std::string& script : std::vector<std::string>{
          std::string(kMake),
          "qemu-img create -q -f qcow2 -o cluster_size=512,refcount_bits=64 image 4M; qemu-io -c "
          "'write 1M 1M' -c 'write 512 512' image",
          std::string("qemu-img create -q -f qcow2 -o refcount_bits=1,cluster_size=2M image 1G; qemu-io -c "
                      "'write 900M "
                      "5M' image"),
          std::string(
              "qemu-img create -q -f qcow2 -o extended_l2=on,cluster_size=16k image 8M; qemu-io -c 'write 1M "
              "512' -c 'write -z 2M 1k' -c 'discard 0 8M' -c 'write 4M 70k' image"),
          std::string("qemu-img create -q -f qcow2 -o compat=0.10 image 8M; qemu-io -c 'write 1M 1M' image"),
          std::string("qemu-img create -q -f qcow2 -o data_file=d image 8M; qemu-io -c 'write 0 1M' image"),
          std::string(
              "qemu-img create -q -f qcow2 -o data_file=d,data_file_raw=on image 8M; qemu-io -c 'write 0 1M' "
              "image"),
          kMake + std::string("qemu-img bitmap --add image b; qemu-io -c 'write 1M 1M' image"),
          kMake + std::string("qemu-img convert -c -O qcow2 image c; mv c image"),
          kMake + std::string(
                      "qemu-img snapshot -c one image; qemu-io -c 'write -P 9 1M 64k' -c 'write -z 0 64k' "
                      "image; qemu-img snapshot -c two image; qemu-img resize -q image 600M")}) {
    CAPTURE(script);
    Image image;
    REQUIRE(image.make(script));
    const auto report = image.check();
    CHECK(ours(report) == theirs(image.path));
    CHECK(report.corruptions == 0);
    CHECK(report.messages.empty());
  }
}

TEST_CASE("leaks are found and given back") {
  if (!test::have_program("qemu-img")) return test::skipped("no qemu-img");
  for (const Repair repair : {Repair::Leaks, Repair::All}) {
    Image image;
    REQUIRE(image.make(kMake));
    image.poke(image.first_l2() + 8 * 3, 0);
    image.poke(image.first_l2() + 8 * 4, 0);
    const auto found = image.check();
    CHECK(ours(found) == theirs(image.path));
    CHECK(found.leaks == 2);
    CHECK(found.messages.size() == 2);
    const auto mended = image.check(repair);
    CHECK(mended.leaks == 0);
    CHECK(mended.leaks_fixed == 2);
    is_sound(image);
  }
}

TEST_CASE("a count that is one again gets its flag with the leaks") {
  if (!test::have_program("qemu-img")) return test::skipped("no qemu-img");
  Image image;
  REQUIRE(image.make(kMake));
  const uint64_t entry = image.word(image.first_l2()),
                 block = image.word(image.header().refcount_table_offset);
  image.poke(image.first_l2(), entry & ~kCopied);
  const uint64_t at = block + ((entry & kOffsetMask) >> 16) * 2;
  image.poke(at, (image.word(at) & 0x0000'ffff'ffff'ffff) | uint64_t{2} << 48);
  const auto found = image.check();
  CHECK(ours(found) == theirs(image.path));
  CHECK(found.corruptions == 0);
  CHECK(found.leaks == 1);
  CHECK(image.check(Repair::Leaks).leaks_fixed == 1);
  is_sound(image);
}

TEST_CASE("damage of every kind is found, and mended") {
  if (!test::have_program("qemu-img")) return test::skipped("no qemu-img");
  struct Damage {
    const char* name;
    std::function<void(Image&)> harm;
    bool same_count = true;  // qemu-img counts alike
  };
  const std::vector<Damage> kinds = {
      {"a count of 0", [](Image& i) { i.poke(i.word(i.header().refcount_table_offset), 0); }},
      {"a data entry unaligned", [](Image& i) { i.poke(i.first_l2() + 8, (5 << 16 | 512) | kCopied); },
       false},
      {"a data entry beyond the file",
       [](Image& i) { i.poke(i.first_l2() + 8, uint64_t{1} << 45 | kCopied); }, false},
      {"two entries for a cluster", [](Image& i) { i.poke(i.first_l2() + 8, i.word(i.first_l2())); }},
      {"a copied flag missing",
       [](Image& i) { i.poke(i.first_l2() + 8, i.word(i.first_l2() + 8) & ~kCopied); }},
      {"reserved bits", [](Image& i) { i.poke(i.first_l2() + 8, i.word(i.first_l2() + 8) | 2); }, false},
      {"an L1 entry unaligned", [](Image& i) { i.poke(i.header().l1_offset, 777 * 512 | kCopied); }, false},
      {"an L1 entry beyond the file", [](Image& i) { i.poke(i.header().l1_offset, uint64_t{1} << 45); },
       false},
      {"an L1 entry to itself", [](Image& i) { i.poke(i.header().l1_offset, i.header().l1_offset); }, false},
      {"no refcount block", [](Image& i) { i.poke(i.header().refcount_table_offset, 0); }, false},
      {"a refcount block unaligned", [](Image& i) { i.poke(i.header().refcount_table_offset, 777); }, false},
      {"a refcount block beyond the file",
       [](Image& i) { i.poke(i.header().refcount_table_offset, uint64_t{1} << 45); }, false},
      {"a refcount block in data",
       [](Image& i) { i.poke(i.header().refcount_table_offset, i.word(i.first_l2()) & kOffsetMask); }, false},
      {"a refcount table nowhere", [](Image& i) { i.poke(48, uint64_t{1} << 45); }, false},
      {"the dirty bit", [](Image& i) { i.poke(72, 1); }},
      {"the corrupt bit", [](Image& i) { i.poke(72, 2); }},
      {"data in the L1 table", [](Image& i) { i.poke(i.first_l2() + 8, i.header().l1_offset | kCopied); }},
      {"data in the refcount block",
       [](Image& i) { i.poke(i.first_l2() + 8, i.word(i.header().refcount_table_offset) | kCopied); }, false},
  };
  for (const Damage& damage : kinds) {
    CAPTURE(std::string(damage.name));
    Image image;
    REQUIRE(image.make(kMake));
    damage.harm(image);
    const auto found = image.check();
    CHECK((found.corruptions + found.leaks != 0 || image.header().incompatible != 0));
    if (damage.same_count) CHECK(ours(found) == theirs(image.path));
    const auto mended = image.check(Repair::All);
    CHECK(mended.corruptions == 0);
    CHECK(mended.leaks == 0);
    CHECK((image.header().incompatible & (kDirty | kCorrupt)) == 0);
    is_sound(image);
    const auto write = test::run_command("qemu-io -c 'write -P 9 0 8M' -c 'read -P 9 0 8M' " + image.path);
    CHECK_MESSAGE(write.status == 0, write.output);
    is_sound(image);
  }
}

TEST_CASE("snapshots that cannot be read keep every count as it is") {
  if (!test::have_program("qemu-img")) return test::skipped("no qemu-img");
  Image image;
  REQUIRE(image.make(kMake + std::string("qemu-img snapshot -c one image")));
  image.poke(64, uint64_t{1} << 40);
  CHECK(image.check().corruptions != 0);
  const auto mended = image.check(Repair::All);
  CHECK(mended.corruptions != 0);
  CHECK(mended.leaks_fixed == 0);
}

TEST_CASE("a file cut off anywhere is checked and mended") {
  if (!test::have_program("qemu-img")) return test::skipped("no qemu-img");
  Image whole;
  REQUIRE(
      whole.make("qemu-img create -q -f qcow2 -o cluster_size=4k image 1M; qemu-io -c 'write 0 64k' image; "
                 "qemu-img snapshot -c one image; qemu-io -c 'write 8k 32k' image"));
  const auto size = std::filesystem::file_size(whole.path);
  for (uint64_t length = 4096; length < size; length += 3 * 1024) {
    CAPTURE(length);
    Image image;
    std::filesystem::copy_file(whole.path, image.path);
    std::filesystem::resize_file(image.path, length);
    const auto found = image.check();
    const auto mended = image.check(Repair::All);
    if (mended.corruptions == 0) is_sound(image);
  }
}
