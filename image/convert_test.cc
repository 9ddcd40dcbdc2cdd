#include "image/convert.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <random>

#include "image/bench.h"
#include "image/test_shop.h"

namespace spindle::image {
namespace {

// Data and zeroes in stretches of all lengths, short ones mostly.
std::string patchwork(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);  // NOLINT: the same every time
  std::string bytes(size, '\0');
  for (std::size_t at = 0; at < size;) {
    const std::size_t length = std::min<std::size_t>(size - at, 1 + random() % (1u << (9 + random() % 12)));
    if (random() % 2 == 0) {
      for (std::size_t i = 0; i < length; ++i) bytes[at + i] = static_cast<char>(1 + random() % 255);
    }
    at += length;
  }
  return bytes;
}

Result<> convert(test::Shop& shop, const ConvertRequest& request) {
  Progress progress(false);
  return shop.wait(convert_image(shop.workshop(), request, progress));
}

uint64_t allocated(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

}  // namespace

TEST_CASE("convert: every byte, at every size, in every way") {
  test::Shop shop;
  unsigned seed = 0;
  for (const std::size_t size :
       {0ul, 1ul, 511ul, 513ul, 65537ul, (2ul << 20) - 1, (2ul << 20) + 512, (9ul << 20) + 77}) {
    const std::string bytes = patchwork(size, ++seed);
    const std::string source = shop.file("source", bytes);
    for (const CacheMode cache : {CacheMode::Writeback, CacheMode::None, CacheMode::Unsafe}) {
      for (const uint64_t sparse : {0, 512, 4096, 65536}) {
        INFO("size " << size << " cache " << to_string(cache) << " sparse " << sparse);
        const CopyOptions copy{.coroutines = 1 + seed % 16, .out_of_order = seed % 2 == 0, .sparse = sparse};
        const auto done = convert(shop, {.sources = {{.text = source, .format = "raw"}},
                                         .target = shop.dir.file("target"),
                                         .target_cache = cache,
                                         .copy = copy});
        if (!done && done.error()->message().find("O_DIRECT") != std::string::npos) continue;  // an old tmpfs
        REQUIRE(done);
        CHECK((shop.content("target") == bytes));
        std::filesystem::remove(shop.dir.file("target"));
      }
    }
  }
}

TEST_CASE("convert: so long that it is written out as it goes, through a link to a file that is made") {
  test::Shop shop;
  const std::string bytes = patchwork(70 << 20, 5);
  const std::string source = shop.file("source", bytes);
  std::filesystem::create_symlink("elsewhere", shop.dir.file("target"));
  REQUIRE(convert(shop, {.sources = {{.text = source, .format = "raw"}}, .target = shop.dir.file("target")}));
  CHECK((shop.content("elsewhere") == bytes));
}

TEST_CASE("convert: holes stay holes, zeroes become some, and -S 0 makes none") {
  test::Shop shop;
  const std::string source = shop.dir.file("source", 8 << 20);
  {
    std::ofstream out(source, std::ios::in | std::ios::binary);
    out.seekp(2 << 20);
    out << std::string(64 << 10, 'x') << std::string(1 << 20, '\0');
  }
  const auto request = [&](uint64_t sparse) {
    return ConvertRequest{.sources = {{.text = source, .format = "raw"}},
                          .target = shop.dir.file("target"),
                          .copy = {.sparse = sparse}};
  };
  REQUIRE(convert(shop, request(4096)));
  CHECK(allocated(shop.dir.file("target")) <= (128 << 10));
  REQUIRE(convert(shop, request(0)));
  CHECK(allocated(shop.dir.file("target")) >= (8 << 20));
  CHECK((shop.content("target") == shop.content("source")));
}

TEST_CASE("convert -n: old data give way to zeroes, what lies behind stays, and too small is refused") {
  test::Shop shop;
  const std::string bytes = patchwork(3 << 20, 99);
  shop.file("source", bytes);
  const std::string old(5 << 20, 'o');
  shop.file("target", old);
  const ConvertRequest request{.sources = {{.text = shop.dir.file("source"), .format = "raw"}},
                               .target = shop.dir.file("target"),
                               .keep_target = true};
  REQUIRE(convert(shop, request));
  CHECK((shop.content("target") == bytes + old.substr(bytes.size())));
  shop.file("target", old.substr(0, 1 << 20));
  const auto small = convert(shop, request);
  REQUIRE_FALSE(small);
  CHECK(small.error()->message().find("smaller") != std::string::npos);
  CHECK((shop.content("target") == old.substr(0, 1 << 20)));
}

TEST_CASE("convert: a target that is the source keeps its content") {
  test::Shop shop;
  shop.file("source", "precious");
  std::filesystem::create_hard_link(shop.dir.file("source"), shop.dir.file("link"));
  for (const char* target : {"source", "link"}) {
    const auto done = convert(shop, {.sources = {{.text = shop.dir.file("source"), .format = "raw"}},
                                     .target = shop.dir.file(target)});
    REQUIRE_FALSE(done);
    CHECK(done.error()->message().find("same file") != std::string::npos);
  }
  CHECK(shop.content("source") == "precious");
}

TEST_CASE("convert: what fails on the way leaves no new file, and a note about an old one") {
  test::Shop shop;
  shop.file("source", std::string(6 << 20, 'x'));
  ConvertRequest request{
      .sources = {{.text = "file=" + shop.dir.file("source") + ",format=raw,fault=read:2:EIO",
                   .options = true}},
      .target = shop.dir.file("target")};
  const auto failed = convert(shop, request);
  REQUIRE_FALSE(failed);
  CHECK(failed.error()->number == EIO);
  CHECK_FALSE(std::filesystem::exists(shop.dir.file("target")));
  CHECK(shop.notes.empty());
  shop.file("target", "old");
  REQUIRE_FALSE(convert(shop, request));
  CHECK(shop.notes.size() == 1);
  // What the target cannot take.
  request.sources = {{.text = shop.dir.file("source"), .format = "raw"}};
  request.keep_target = request.target_options = true;
  shop.dir.file("target", 6 << 20);
  request.target = "file=" + shop.dir.file("target") + ",format=raw,fault=write:3:ENOSPC";
  const auto full = convert(shop, request);
  REQUIRE_FALSE(full);
  CHECK(full.error()->kind == ErrorKind::NoSpace);
  request.target = "file=" + shop.dir.file("target") + ",format=raw,fault=flush:1:EIO";
  const auto unsafe = convert(shop, request);
  REQUIRE_FALSE(unsafe);
  CHECK(unsafe.error()->kind == ErrorKind::FlushFailed);
}

TEST_CASE("bench: as many requests and flushes as asked for") {
  test::Shop shop;
  const std::string path = shop.dir.file("image", 1 << 20);
  const auto counters_of = [&](const BenchOptions& options) {
    auto disk = shop.wait(open_image(shop.workshop(), {.text = path, .format = "raw"}, {.write = true}));
    REQUIRE(disk);
    REQUIRE(shop.wait(run_bench(**disk, options)));
    const auto& counters = (*disk)->counters();
    const std::array<uint64_t, 3> counted{counters.read_ops.value(), counters.write_ops.value(),
                                          counters.flush_requests.value()};
    REQUIRE(shop.wait((*disk)->close()));
    return counted;
  };
  CHECK(counters_of({.count = 1000, .depth = 7}) == std::array<uint64_t, 3>{1000, 0, 0});
  CHECK(counters_of({.count = 0}) == std::array<uint64_t, 3>{0, 0, 0});
  CHECK(counters_of({.count = 160, .depth = 1, .write = true, .flush_interval = 16}) ==
        std::array<uint64_t, 3>{0, 160, 10});
  CHECK(counters_of({.count = 160, .depth = 8, .write = true, .flush_interval = 16}) ==
        std::array<uint64_t, 3>{0, 160, 10});
  CHECK(counters_of({.count = 160, .depth = 8, .write = true, .flush_interval = 16, .drain = false}) ==
        std::array<uint64_t, 3>{0, 160, 10});
  CHECK(counters_of({.count = 3, .depth = 64, .write = true}) == std::array<uint64_t, 3>{0, 3, 0});
}

TEST_CASE("bench: steps wrap at the end, and what reaches beyond it is an error") {
  test::Shop shop;
  const std::string path = shop.dir.file("image", 10 << 10);
  const auto run = [&](const BenchOptions& options) {
    auto disk = shop.wait(open_image(shop.workshop(), {.text = path, .format = "raw"}, {.write = true}));
    REQUIRE(disk);
    const auto result = shop.wait(run_bench(**disk, options));
    REQUIRE(shop.wait((*disk)->close()));
    return result.has_value();
  };
  CHECK(run({.count = 13, .depth = 2, .request = 512, .step = 1024, .write = true, .pattern = 7}));
  std::string expected(10 << 10, '\0');
  for (std::size_t at = 0; at < expected.size(); at += 1024) expected.replace(at, 512, 512, '\7');
  CHECK((shop.content("image") == expected));
  CHECK_FALSE(run({.count = 3, .request = 4096, .write = true}));
  CHECK_FALSE(run({.depth = 0}));
  CHECK_FALSE(run({.flush_interval = 100}));
  CHECK_FALSE(run({.depth = 64, .write = true, .flush_interval = 16}));
}

}  // namespace spindle::image
