// `spindle img` and `spindle io` from outside, where things go wrong: names, sizes and lists that are
// strange, files that are cut, hosts that are full, outputs that are closed. Each error is one line and ends
// in the status that qemu-img would have.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "block/test_support/environment.h"

namespace spindle {
namespace {

struct Bench {
  test::TempDir dir;
  Bench() { REQUIRE(dir.ok()); }
  // In the directory, with both streams.
  test::Command run(const std::string& arguments) {
    return test::run_command("cd '" + dir.path() + "' && { timeout 60 '" SPINDLE_BINARY "' " + arguments +
                             " </dev/null; }");
  }
  void refused(const std::string& arguments, const std::string& word, int status = 1) {
    const test::Command done = run(arguments);
    INFO(arguments << " -> " << done.output);
    CHECK(done.status == status);
    CHECK(std::ranges::count(done.output, '\n') == 1);
    CHECK(done.output.starts_with("spindle i"));
    CHECK(done.output.find(word) != std::string::npos);
  }
  void works(const std::string& arguments) {
    const test::Command done = run(arguments);
    INFO(arguments << " -> " << done.output);
    CHECK(done.status == 0);
  }
  bool there(const std::string& name) const { return std::filesystem::exists(dir.file(name)); }
};

}  // namespace

TEST_CASE("img: user errors are one line and status 1") {
  Bench bench;
  bench.dir.file("a.raw", 1 << 20);
  bench.refused("img", "subcommand");
  bench.refused("img frob", "frob");
  bench.refused("img info", "FILE");
  bench.refused("img info -f tar a.raw", "tar");
  bench.refused("img info nothere", "nothere");
  bench.refused("img info .", "directory");
  bench.refused("img info x:y", "protocol");
  bench.refused("img info --image-opts driver=raw", "file");
  bench.refused("img info --image-opts -f raw file=a.raw", "-f");
  bench.refused("img create -q a.raw", "size");
  bench.refused("img create -q a.raw 8E", "8E");
  bench.refused("img create -q a.raw 9223372036854775808", "9223372036854775808");
  bench.refused("img create -q new.raw 9223372036854775807", "too large");
  bench.refused("img create -q a.raw -- -1", "-1");
  bench.refused("img create -q -o preallocation a.raw 1M", "needs a value");
  bench.refused("img create -q -o preallocation=some new.raw 1M", "off, falloc or full");
  bench.refused("img create -q -o ,, new.raw 1M", "option");
  bench.refused("img create -q -o size=2M new.raw 1M", "only once");
  bench.refused("img create -q . 1M", "directory");
  bench.refused("img create -q /dev/full 1M", "character device");
  bench.refused("img create -q nowhere/a.raw 1M", "nowhere/a.raw");
  bench.refused("img create -q null-co:// 1M", "file");
  bench.refused("img check --bogus a.raw", "bogus");
  bench.refused("img check -f raw a.raw", "does not support checks", 63);
  // What a format has checks for, but not of this kind, is another thing.
  bench.works("img create -q -f vdi other.vdi 1M");
  std::fstream(bench.dir.file("other.vdi"), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(0x4c)
      .put(4);
  bench.refused("img check -f vdi other.vdi", "image type", 1);
  bench.refused("img compact -f raw a.raw", "cannot be compacted", 63);
  bench.refused("img convert a.raw ./a.raw", "same file");
  bench.refused("img convert -n --target-image-opts a.raw driver=raw,file.filename=./a.raw", "same file");
  bench.refused(
      "img convert -n --image-opts --target-image-opts driver=raw,file.filename=a.raw,locking=off "
      "driver=raw,file.filename=./a.raw,locking=off",
      "same file");
  bench.refused("img convert -c a.raw b.raw", "ompression");
  bench.refused("img convert -m x a.raw b.raw", "coroutines");
  bench.refused("img convert -n -o size=1M a.raw b.raw", "-o");
  bench.refused("img convert -o size=1k a.raw b.raw", "smaller");
  bench.refused("img convert -f raw a.raw .", "directory");
  bench.refused("img bench -d 0 a.raw", "depth");
  bench.refused("img bench -c x a.raw", "-c");
  bench.refused("img bench -f raw -U -w a.raw", "-U");
  bench.refused("io -f raw -t fast a.raw -c length", "fast");
  bench.refused("io -f raw -d never a.raw -c length", "never");
  bench.refused("io -f raw nothere -c length", "nothere");
  CHECK_FALSE(bench.there("new.raw"));
  CHECK_FALSE(bench.there("b.raw"));
  struct stat status {};
  REQUIRE(::stat(bench.dir.file("a.raw").c_str(), &status) == 0);
  CHECK(status.st_size == 1 << 20);
}

TEST_CASE("img: names with commas, colons, blanks and what looks like an option") {
  Bench bench;
  for (const char* name : {"a,b.raw", "./c:d.raw", "file:e:f.raw", "g h.raw", "-- -i.raw", "'j\"k'"}) {
    INFO(name);
    const std::string quoted =
        std::string(name).find_first_of("-'") == 0 ? name : "'" + std::string(name) + "'";
    bench.works("img create -q -f raw " + (quoted[0] == '-' ? quoted : "-- " + quoted) + " 64k");
    bench.works("img info -f raw " + (quoted[0] == '-' ? quoted : "-- " + quoted));
  }
  CHECK(bench.there("a,b.raw"));
  CHECK(bench.there("c:d.raw"));
  CHECK(bench.there("e:f.raw"));
  CHECK(bench.there("-i.raw"));
  bench.works("io --image-opts 'driver=raw,file.filename=a,,b.raw' -c 'write 0 1k'");
}

TEST_CASE("img: outputs that take nothing") {
  Bench bench;
  bench.dir.file("a.raw", 1 << 20);
  for (const char* arguments :
       {"img info -f raw a.raw", "img map -f raw a.raw", "img create b.raw 1M", "img create -o help",
        "img bench -f raw -c 1 a.raw", "io -f raw -c length a.raw"}) {
    const test::Command full = bench.run(std::string(arguments) + " >/dev/full");
    INFO(arguments << " -> " << full.output);
    CHECK(full.status == 1);
    CHECK(full.output.find("write the output") != std::string::npos);
    CHECK(std::ranges::count(full.output, '\n') == 1);
  }
  CHECK_FALSE(bench.there("b.raw"));
  // Closed descriptors are no image's: what is printed must not land in one.
  const test::Command closed = bench.run("io -f raw -c 'write 0 4k' -c length a.raw >&- 2>&-");
  CHECK(closed.status == 0);
  bench.works("io -f raw -c 'read -P 0xcd 0 4k' -c 'read -P 0 4k 1020k' a.raw");
}

TEST_CASE("img: a full file system, and files that may not be written") {
  Bench bench;
  bench.dir.file("hole.raw", 8 << 20);
  std::ofstream(bench.dir.file("data.raw")) << std::string(8 << 20, 'x');
  const std::string limit =
      "cd '" + bench.dir.path() + "' && ulimit -f 2048 && timeout 60 '" SPINDLE_BINARY "' ";
  const test::Command cut =
      test::run_command(limit + "img convert -f raw data.raw cut.raw");  // 2 MiB at most
  INFO(cut.output);
  CHECK(cut.status == 1);
  CHECK(std::ranges::count(cut.output, '\n') == 1);
  CHECK_FALSE(bench.there("cut.raw"));
  REQUIRE(::chmod(bench.dir.file("data.raw").c_str(), 0444) == 0);
  if (geteuid() == 0) return test::skipped("root may write files that nobody may write");
  bench.refused("img convert -f raw hole.raw data.raw", "data.raw");
  bench.refused("img create -q data.raw 1M", "data.raw");
  bench.refused("io -f raw -c length data.raw", "data.raw");
  bench.works("io -r -f raw -c length data.raw");
}

TEST_CASE("img: convert to a small tmpfs ends in one line and leaves no half image") {
  Bench bench;
  std::ofstream(bench.dir.file("data.raw")) << std::string(8 << 20, 'x');
  const std::string mount = bench.dir.file("mount");
  std::filesystem::create_directory(mount);
  const test::Command done = test::run_command(
      "unshare -rm sh -c \"mount -t tmpfs -o size=2M none '" + mount + "' || exit 99; cd '" + mount +
      "'; timeout 60 '" SPINDLE_BINARY "' img convert -f raw ../data.raw new.raw; echo status \\$?; ls\"");
  if (done.status == 99 || done.output.find("status") == std::string::npos)
    return test::skipped("no tmpfs can be mounted here");
  INFO(done.output);
  CHECK(done.output.find("No space left on device") != std::string::npos);
  CHECK(done.output.ends_with("\nstatus 1\n"));
  CHECK(std::ranges::count(done.output, '\n') == 2);
}

TEST_CASE("img: progress on the line, and on SIGUSR1") {
  Bench bench;
  bench.dir.file("a.raw", 8 << 20);
  const test::Command shown = bench.run("img convert -p -f raw a.raw b.raw");
  CHECK(shown.output.starts_with("    (0.00/100%)\r"));
  CHECK(shown.output.ends_with("    (100.00/100%)\r\n"));
  CHECK(bench.run("img convert -p -q -f raw a.raw b.raw").output.empty());
}

}  // namespace spindle
