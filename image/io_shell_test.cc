#include "image/io_shell.h"

#include <doctest/doctest.h>

#include "image/test_shop.h"

namespace spindle::image {
namespace {

struct Bench {
  test::Shop shop;
  std::unique_ptr<Disk> disk;
  std::string printed;

  explicit Bench(uint64_t size, OpenMode mode = {.write = true}) {
    shop.dir.file("image", size);
    auto opened =
        shop.wait(open_image(shop.workshop(), {.text = shop.dir.file("image"), .format = "raw"}, mode));
    REQUIRE(opened);
    disk = std::move(*opened);
  }
  ~Bench() { CHECK(shop.wait(disk->close())); }
  // What the line printed; fails the test if its outcome is not `good`.
  std::string run(std::string_view line, bool good = true) {
    printed.clear();
    IoShell shell(
        *shop.reactor, disk.get(), [this](std::string_view text) { printed += text; },
        [this](std::string_view text) { printed += text; });
    INFO(line);
    CHECK((shell.run(line) == IoShell::Outcome::Done) == good);
    CHECK(shell.failed() != good);
    return printed;
  }
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("io shell: writes are read back, and a wrong pattern is a failure") {
  Bench bench(1 << 20);
  CHECK(has(bench.run("write -P 7 4k 8k"), "wrote 8192/8192 bytes at offset 4096\n8 KiB, 1 ops; 00.0"));
  CHECK(has(bench.run("read -P 7 4k 8k"), "read 8192/8192 bytes at offset 4096"));
  CHECK(bench.run("read -qP7 4k 8k").empty());
  CHECK(has(bench.run("read -P 8 4k 8k", false), "Pattern verification failed at offset 4096, 8192 bytes"));
  bench.run("read -P 0 -l 4k 0 8k");
  bench.run("read -P 7 -s 4k -l 4k 0 8k");
  CHECK(has(bench.run("read -P 7 -s 2k 0 8k", false), "failed at offset 2048, 6144 bytes"));
  CHECK(has(bench.run("write -z 4k 4k"), "wrote 4096/4096"));
  bench.run("read -P 0 4k 4k");
  bench.run("write -zu 8k 1");
  bench.run("read -P 0 8k 1");
  bench.run("read -P 7 8193 1k");
  bench.run("write -f 100 5");
  bench.run("read -P 0xcd 100 5");
  CHECK(has(bench.run("discard 0 64k"), "discard 65536/65536 bytes at offset 0"));
  CHECK(bench.run("flush").empty());
  CHECK(bench.run("length") == "1 MiB\n");
  CHECK(bench.disk->counters().flush_requests.value() == 1);
  CHECK(bench.run("write -C 0 4k").starts_with("4096,1,0:00:0"));
}

TEST_CASE("io shell: a dump") {
  Bench bench(4096);
  bench.run("write -P 0x41 0 18");
  CHECK(bench.run("read -v 0 18")
            .starts_with("00000000:  41 41 41 41 41 41 41 41 41 41 41 41 41 41 41 41  AAAAAAAAAAAAAAAA\n"
                         "00000010:  41 41  AA\nread 18/18"));
}

TEST_CASE("io shell: a file for a pattern, again and again") {
  Bench bench(4096);
  const std::string pattern = bench.shop.file("pattern", "abc");
  bench.run("write -s " + pattern + " 0 8");
  CHECK(has(bench.run("read -v 0 8"), "abcabcab"));
  CHECK(has(bench.run("write -s " + bench.shop.file("nothing", "") + " 0 8", false), "file is empty"));
  CHECK(has(bench.run("write -s /nonexistent/file 0 8", false), "No such file"));
}

TEST_CASE("io shell: what cannot be is said and not done") {
  Bench bench(1 << 20);
  CHECK(has(bench.run("read 1M 1", false), "read failed: Input/output error"));
  CHECK(has(bench.run("write 1023k 1025", false), "write failed: Input/output error"));
  CHECK(has(bench.run("discard 2M 4k", false), "discard failed"));
  CHECK(has(bench.run("read 0 9223372036854775807", false), "length cannot exceed"));
  CHECK(has(bench.run("write -z 9223372036854775807 9223372036854775807", false), "write failed"));
  CHECK(has(bench.run("discard 7E 7E", false), "discard failed"));
  CHECK(has(bench.run("read 0 9e", false), "Parsing error"));
  CHECK(has(bench.run("read x 1", false), "Parsing error"));
  CHECK(has(bench.run("read 0", false), "bad argument count 1 to read, expected at least 2 arguments"));
  CHECK(has(bench.run("read -x 0 1", false), "invalid option -- 'x'"));
  CHECK(has(bench.run("read 0 1 -P", false), "requires an argument -- 'P'"));
  CHECK(has(bench.run("read -s 1 0 4k", false), "only meaningful with -P"));
  CHECK(has(bench.run("read -P 1 -s 8k 0 4k", false), "exceeds"));
  CHECK(has(bench.run("read -P 1 -s 1k -l 4k 0 4k", false), "exceeds"));
  CHECK(has(bench.run("write -P 256 0 1", false), "256 is not a valid pattern byte"));
  CHECK(has(bench.run("write -u 0 1", false), "-u requires -z"));
  CHECK(has(bench.run("write -P 1 -z 0 1", false), "Only one of"));
  CHECK(has(bench.run("frob", false), "command \"frob\" not found"));
  CHECK(has(bench.run("help frob", false), "frob not found"));
  CHECK(bench.run("").empty());
  CHECK(bench.run(" \t").empty());
  CHECK(has(bench.run("help"), "discard [-Cq] off len"));
  bench.run("read -P 0 0 1M");
}

TEST_CASE("io shell: an image that is only read, and none") {
  Bench bench(4096, {.write = false});
  CHECK(has(bench.run("write 0 1", false), "write failed: Read-only file system"));
  bench.run("read 0 4k");
  std::string printed;
  const auto print = [&](std::string_view text) { printed += text; };
  IoShell none(*bench.shop.reactor, nullptr, print, print);
  CHECK(none.run("read 0 1") == IoShell::Outcome::Failed);
  CHECK(has(printed, "no file open"));
  CHECK(none.run("quit") == IoShell::Outcome::Quit);
}

}  // namespace spindle::image
