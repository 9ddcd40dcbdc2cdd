#include "block/other_files.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>

#include "formats/test_support/cow_toy_bench.h"

namespace spindle {
namespace {

using test::CowToyBench;
using test::says;
using test::TempDir;

constexpr uint64_t kSector = test::CowToy::kSector;

std::string meant(const std::string& overlay, const std::string& name) {
  auto file = meant_file(overlay, name);
  return file ? file->file + (file->format ? " as " + *file->format : "") : file.error()->message();
}

TEST_CASE("other files: what a name means") {
  CHECK(meant("/a/b.img", "c.img") == "/a/c.img");
  CHECK(meant("a/b.img", "../c.img") == "a/../c.img");
  CHECK(meant("b.img", "c.img") == "c.img");
  CHECK(meant("a/b.img", "/c.img") == "/c.img");
  CHECK(meant("file:a/b.img", "c.img") == "a/c.img");
  CHECK(meant("file:a:b/c.img", "d.img") == "file:a:b/d.img");
  CHECK(meant("a/b.img", "file:c:d.img") == "file:c:d.img");
  CHECK(meant("a/b.img", "d/c:e") == "a/d/c:e");
  CHECK(meant("a/b.img", R"(json:{"driver":"raw","file":{"driver":"file","filename":"x:y"}})") ==
        "file:x:y as raw");
  CHECK(meant("a/b.img", R"(json:{"driver":"file","filename":"x"})") == "file:x");
  CHECK(meant("a/b.img", R"(json:{"driver":"toy","file.filename":"/x"})") == "file:/x as toy");
  for (const char* name :
       {"nbd://host/x", "json:", "json:{", "json:[]", "json:{}", R"(json:{"driver":"raw"})",
        R"(json:{"file":"node0"})", R"(json:{"filename":"x","offset":"3"})", R"(json:{"filename":5})",
        R"(json:{"filename":"x","file":{"filename":"y"}})", R"(json:{"driver":"nbd","host":"x"})"}) {
    CHECK_MESSAGE(!meant_file("a/b.img", name).has_value(), name);
  }
  CHECK(says(meant("a/b.img", R"(json:{"filename":"x","offset":"3"})"), "\"offset\" is unknown here"));
  CHECK(!meant_file("a", std::string("x\0y", 3)).has_value());
}

TEST_CASE("other files: a chain is read through, and only its top is written") {
  CowToyBench bench;
  bench.raw("base.img", 'b');
  const auto middle = bench.toy("middle.toy", {.backing = "base.img", .format = "raw"});
  const auto top = bench.toy("top.toy", {.backing = "middle.toy", .format = "toy"});
  {
    auto node = bench.opened("format=toy,file=" + middle);
    CHECK(bench.write(*node, 2 * kSector, std::string(kSector, 'm')).has_value());
    bench.close(*node);
  }
  auto node = bench.opened("format=toy,file=" + top);
  CHECK(bench.write(*node, kSector, std::string(kSector, 't')).has_value());
  CHECK(bench.read(*node, 0, 4 * kSector) == std::string(kSector, 'b') + std::string(kSector, 't') +
                                                 std::string(kSector, 'm') + std::string(kSector, 'b'));
  const auto depth = [&](uint64_t offset) {
    return bench.reactor->wait(node->map(offset, kSector)).value().depth;
  };
  CHECK(depth(kSector) == 0);
  CHECK(depth(2 * kSector) == 1);
  CHECK(depth(0) == 2);
  const auto counted = protocol_counters_below(*node);
  CHECK(counted.reads > 3);
  // Read-only images are shared: another overlay may lie over the same file, and nobody may write to it.
  const auto other = bench.toy("other.toy", {.backing = "middle.toy", .format = "toy"});
  auto second = bench.opened("format=toy,file=" + other);
  CHECK(says(bench.refused("format=toy,file=" + middle), "lock"));
  bench.close(*second);
  bench.close(*node);
  auto alone = bench.opened("format=toy,backing=off,file=" + top);
  CHECK(bench.read(*alone, 0, 2 * kSector) == std::string(kSector, '\0') + std::string(kSector, 't'));
  bench.close(*alone);
}

TEST_CASE("other files: what a guest may have written does not choose a format") {
  CowToyBench bench;
  bench.toy("looks.toy");
  bench.raw("base.img", 'b');
  const auto unsaid = bench.toy("unsaid.toy", {.backing = "looks.toy"});
  const auto raw = bench.toy("raw.toy", {.backing = "base.img"});
  CHECK(says(bench.refused("format=toy,file=" + unsaid), "backing-format=toy"));
  for (const char* option : {"backing-format=toy", "backing-format=raw", "backing=off"})
    bench.close(*bench.opened(fmt::format("format=toy,{},file={}", option, unsaid)));
  bench.close(*bench.opened("format=toy,file=" + raw));
  const auto unknown = bench.toy("unknown.toy", {.backing = "base.img", .format = "parchment"});
  CHECK(says(bench.refused("format=toy,file=" + unknown), "parchment"));
  const auto missing = bench.toy("missing.toy", {.backing = "nowhere.img", .format = "raw"});
  CHECK(says(bench.refused("format=toy,file=" + missing), "nowhere.img"));
}

TEST_CASE("other files: loops and long chains are refused") {
  CowToyBench bench;
  const auto self = bench.toy("self.toy", {.backing = "self.toy", .format = "toy"});
  CHECK(says(bench.refused("format=toy,file=" + self), "self.toy -> "));
  const auto a = bench.toy("a.toy", {.backing = "b.toy", .format = "toy"});
  bench.toy("b.toy", {.backing = "c.toy", .format = "toy"});
  std::filesystem::create_symlink(a, bench.dir.file("c.toy"));
  const auto message = bench.refused("format=toy,file=" + a);
  CHECK_MESSAGE(says(message, "b.toy -> " + bench.dir.file("c.toy")), message);

  bench.toy("0.toy");
  for (unsigned i = 1; i <= kLongestChain + 1; ++i)
    bench.toy(fmt::format("{}.toy", i), {.backing = fmt::format("{}.toy", i - 1), .format = "toy"});
  const auto longest = bench.dir.file(fmt::format("{}.toy", kLongestChain));
  auto node = bench.opened("format=toy,file=" + longest);
  CHECK(bench.read(*node, 0, kSector) == std::string(kSector, '\0'));
  bench.close(*node);
  const auto too_long =
      bench.refused("format=toy,file=" + bench.dir.file(fmt::format("{}.toy", kLongestChain + 1)));
  CHECK_MESSAGE(says(too_long, "more than 200 images"), too_long);
  CHECK(too_long.size() < 4096);
}

TEST_CASE("other files: the user says where they may lie") {
  CowToyBench bench;
  TempDir elsewhere;
  const auto far = elsewhere.file("far.img", bench.kSize);
  bench.raw("near.img", 'n');
  std::filesystem::create_symlink(far, bench.dir.file("link.img"));
  const auto over = [&](const char* name, const std::string& backing) {
    return "format=toy,file=" + bench.toy(name, {.backing = backing, .format = "raw"});
  };
  const auto near_disk = over("near.toy", "near.img");
  const auto far_disk = over("far.toy", far);
  const auto link_disk = over("link.toy", "link.img");
  for (const auto& disk : {near_disk, far_disk, link_disk}) {
    bench.close(*bench.opened(disk));
    bench.close(*bench.opened(disk + ",other-files=on"));
    CHECK(says(bench.refused(disk + ",other-files=off"), "other-files=off does not allow"));
  }
  bench.close(*bench.opened(near_disk + ",other-files=same-directory"));
  CHECK(says(bench.refused(far_disk + ",other-files=same-directory"), "outside"));
  CHECK(says(bench.refused(link_disk + ",other-files=same-directory"), "outside"));
}

TEST_CASE("other files: a data file needs the user's word") {
  CowToyBench bench;
  TempDir elsewhere;
  const auto far = elsewhere.file("far.img", bench.kSize);
  bench.raw("near.img", 'n');
  const auto near_image = bench.toy("near.toy", {.data_file = "near.img"});
  const auto near_disk = "format=toy,file=" + near_image;
  const auto far_disk = "format=toy,file=" + bench.toy("far.toy", {.data_file = far});
  CHECK(says(bench.refused(near_disk), "other-files=on"));
  CHECK(says(bench.refused(far_disk + ",other-files=same-directory"), "outside"));
  CHECK(says(bench.refused(near_disk + ",data-file=" + near_image), "below itself"));
  CHECK(says(bench.refused(near_disk + ",other-files=on,record=" + bench.dir.file("log")), "record="));
  for (const auto& options :
       {near_disk + ",other-files=same-directory", far_disk + ",other-files=on",
        near_disk + ",data-file=" + far, near_disk + ",other-files=off,data-file=" + far}) {
    auto node = bench.opened(options);
    auto* toy = dynamic_cast<test::CowToy*>(node->child());
    REQUIRE(toy != nullptr);
    REQUIRE(toy->data_file() != nullptr);
    CHECK(bench.write(*toy->data_file(), 0, "data").has_value());
    bench.close(*node);
  }
  auto node = bench.opened(near_disk + ",readonly=on,other-files=on");
  CHECK(!bench.write(*dynamic_cast<test::CowToy&>(*node->child()).data_file(), 0, "data").has_value());
  bench.close(*node);
}

}  // namespace
}  // namespace spindle
