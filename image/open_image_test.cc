#include "image/open_image.h"

#include <doctest/doctest.h>

#include <cstring>

#include "image/create.h"
#include "image/info.h"
#include "image/test_shop.h"

namespace spindle::image {
namespace {

std::string error_of(const Result<DiskSpec>& result) {
  return result ? "" : result.error()->message();
}

bool begins_with_fish(std::span<const std::byte> head) {
  return head.size() >= 4 && std::memcmp(head.data(), "FISH", 4) == 0;
}

}  // namespace

TEST_CASE("open image: the format is found out if nobody said it") {
  test::Shop shop;
  shop.formats.add({.name = "fish", .open = {}, .probe = begins_with_fish});
  const std::string fish = shop.file("fish", "FISH and more"), other = shop.file("other", "FIS");
  const auto workshop = shop.workshop();
  CHECK(probe_format(workshop, fish).value() == "fish");
  CHECK(probe_format(workshop, other).value() == "raw");
  CHECK(probe_format(workshop, "null-co://").value() == "raw");
  CHECK(describe_image(workshop, {.text = fish}, {})->format == "fish");
  CHECK(describe_image(workshop, {.text = fish, .format = "raw"}, {})->format == "raw");
  CHECK(describe_image(workshop, {.text = "file.filename=" + fish, .options = true}, {})->format == "fish");
  CHECK(shop.notes.empty());
  CHECK(describe_image(workshop, {.text = other}, {.write = true})->format == "raw");
  CHECK(shop.notes.size() == 1);  // it was only a guess
}

TEST_CASE("open image: lists of options in QEMU's words and in ours") {
  test::Shop shop;
  const std::string path = shop.file("a,b", std::string(4096, 'x'));
  const auto workshop = shop.workshop();
  const std::string doubled = shop.dir.file("a,,b");
  const auto spec =
      describe_image(workshop,
                     {.text = "driver=raw,file.driver=file,file.filename=" + doubled + ",offset=1k,size=2k",
                      .options = true},
                     {.cache = CacheMode::None, .force_share = true});
  REQUIRE(spec);
  CHECK(spec->file == path);
  CHECK(spec->format_options == FormatOptions{{"offset", "1k"}, {"size", "2k"}});
  CHECK(spec->cache == CacheMode::None);
  CHECK(spec->locking == LockPolicy::Off);
  CHECK(spec->read_only);
  const auto ours = describe_image(
      workshop, {.text = "file=" + doubled + ",format=raw,cache=unsafe", .options = true}, {.write = true});
  REQUIRE(ours);
  CHECK(ours->cache == CacheMode::Unsafe);
  CHECK_FALSE(ours->read_only);
  const auto refused = [&](const ImageName& name) { return error_of(describe_image(workshop, name, {})); };
  CHECK(refused({.text = "driver=raw,file.driver=nbd,file.filename=x", .options = true}).find("nbd") !=
        std::string::npos);
  CHECK(refused({.text = "file=x,colour=red,format=raw", .options = true}).find("colour") !=
        std::string::npos);
  CHECK(refused({.text = ",", .options = true}).find("comma") != std::string::npos);
  CHECK(refused({.text = "", .options = true}).find("empty") != std::string::npos);
  CHECK(refused({.text = "file=x", .format = "raw", .options = true}).find("-f") != std::string::npos);
  CHECK(refused({.text = path, .format = "tar"}).find("raw") != std::string::npos);
  CHECK(refused({.text = ""}).find("no name") != std::string::npos);
  CHECK(refused({.text = shop.dir.path()}).find("directory") != std::string::npos);
}

TEST_CASE("open image: sizes that no guest's disk has") {
  test::Shop shop;
  for (const std::size_t size : {0, 1, 511, 1000}) {
    const std::string path = shop.file("image", std::string(size, 'x'));
    const auto info = shop.wait(image_info(shop.workshop(), {.text = path}, {}));
    REQUIRE(info);
    CHECK(info->virtual_size == size);
  }
}

TEST_CASE("create: what fails leaves nothing behind, and what was there is only touched at the end") {
  test::Shop shop;
  const Format& raw = *shop.formats.find("raw");
  const auto create = [&](const std::string& name, uint64_t size, FormatOptions options = {}) {
    return shop.wait(create_image(shop.workshop(), raw, shop.dir.file(name),
                                  {.size = size, .options = std::move(options)}, CacheMode::Writeback));
  };
  CHECK_FALSE(create("huge", 7ull << 60));
  CHECK_FALSE(create("odd", 512, {{"preallocation", "some"}}));
  CHECK_FALSE(std::filesystem::exists(shop.dir.file("huge")));
  CHECK_FALSE(std::filesystem::exists(shop.dir.file("odd")));
  shop.file("old", "old content");
  CHECK_FALSE(create("old", 512, {{"preallocation", "some"}}));
  CHECK(shop.content("old") == "old content");
  CHECK(create("old", 1000));
  CHECK(shop.content("old") == std::string(1000, '\0'));
  CHECK(create("full", 5000, {{"preallocation", "full"}}));
  CHECK(shop.content("full") == std::string(5000, '\0'));
  const auto other =
      shop.wait(open_image(shop.workshop(), {.text = shop.dir.file("old"), .format = "raw"}, {}));
  REQUIRE(other);
  CHECK(create("old", 2000).error()->kind == ErrorKind::InUse);
  CHECK(shop.content("old").size() == 1000);
  CHECK(shop.wait((*other)->close()));
}

}  // namespace spindle::image
