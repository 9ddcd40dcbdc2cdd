// `spindle img compare, resize, dd, measure` and several sources of convert beside qemu-img, and what the
// program is when it is started under that name.
#include <doctest/doctest.h>

#include <string>

#include "tools/differential_pair.h"

namespace spindle {
namespace {

using test::have_qemu;
using test::Pair;

// a.raw: 10 MiB with data in two places; same.raw: the same but longer; other.raw: one byte differs;
// odd.raw: 1,000,000 bytes of something.
constexpr const char* kImages =
    "truncate -s 10M a.raw && qemu-io -f raw -c 'write 0 64k' -c 'write -P 7 1M 1M' a.raw && "
    "cp a.raw same.raw && truncate -s 12M same.raw && cp a.raw other.raw && "
    "qemu-io -f raw -c 'write -P 8 1500k 1' other.raw && "
    "head -c 1000000 '" SPINDLE_BINARY "' >odd.raw && truncate -s 1M hole.raw";

}  // namespace

TEST_CASE("differential: compare") {
  if (!have_qemu()) return test::skipped("there is no qemu-img; install qemu-utils");
  Pair pair;
  pair.both(kImages);
  pair.both("qemu-img convert -f raw -O vdi a.raw a.vdi");
  for (const char* arguments :
       {"compare a.raw a.raw",
        "compare -f raw -F raw a.raw same.raw",
        "compare -s a.raw same.raw",
        "compare a.raw other.raw",
        "compare other.raw same.raw",
        "compare -q a.raw other.raw",
        "compare -q a.raw same.raw",
        "compare -f vdi -F raw a.vdi same.raw",
        "compare -f raw -F vdi other.raw a.vdi",
        "compare -F vdi hole.raw a.vdi",
        "compare -s a.raw a.raw",
        "compare -s a.raw hole.raw",
        "compare -U -T none a.raw other.raw",
        "compare --image-opts driver=raw,file.filename=a.raw driver=raw,file.filename=a.raw",
        "compare nothere a.raw",
        "compare a.raw nothere",
        "compare -T bogus a.raw a.raw",
        "compare -f raw -F nofmt a.raw a.raw",
        "compare a.raw",
        "compare a.raw a.raw a.raw",
        "compare -f",
        "compare --bogus a.raw a.raw",
        "compare --image-opts -f raw driver=raw,file.filename=a.raw a.raw"}) {
    pair.img(arguments);
  }
  for (const char* arguments : {"compare a.raw", "compare -T bogus a.raw a.raw", "compare -x",
                                "compare --bogus", "compare -f", "compare -qx a.raw a.raw", "compare --im",
                                "compare --i=3", "compare nothere a.raw", "compare a.raw other.raw"}) {
    pair.exactly("qemu-img", arguments);
  }
}

TEST_CASE("differential: resize") {
  if (!have_qemu()) return test::skipped("there is no qemu-img; install qemu-utils");
  Pair pair;
  pair.both(kImages);
  for (const char* arguments : {"resize -f raw a.raw 20M",
                                "resize a.raw +1M",
                                "resize -q -f raw a.raw +512",
                                "resize -f raw a.raw -1M",
                                "resize -f raw --shrink a.raw -1M",
                                "resize --shrink -f raw a.raw 3000",
                                "resize -f raw --shrink a.raw -1G",
                                "resize -f raw --shrink a.raw 0",
                                "resize -f raw a.raw bogus",
                                "resize -f raw a.raw +-5",
                                "resize -f raw a.raw 8E",
                                "resize -f raw a.raw +8191P",
                                "resize -f raw --preallocation=full odd.raw 2M",
                                "resize -f raw --preallocation=falloc odd.raw 3M",
                                "resize -f raw --preallocation=metadata odd.raw 4M",
                                "resize -f raw --preallocation=bogus odd.raw 4M",
                                "resize -f raw --preallocation=full odd.raw 1M",
                                "resize nothere 1M",
                                "resize a.raw",
                                "resize",
                                "resize a.raw odd.raw 1M",
                                "resize --image-opts driver=raw,file.filename=odd.raw 5M",
                                "resize --bogus a.raw 1M",
                                "resize -f raw odd.raw -- -1M"}) {
    pair.img(arguments);
  }
  for (const char* name : {"a.raw", "odd.raw"}) pair.same(name);
  CHECK(test::run_command("test $(stat -c %b '" + pair.ours("odd.raw") + "') -ge 6000").status == 0);
  for (const char* arguments :
       {"resize a.raw", "resize", "resize -f raw a.raw -1", "resize a.raw odd.raw 1M",
        "resize -f raw --preallocation=bogus odd.raw 9M", "resize -f raw --preallocation=full odd.raw 1M"}) {
    pair.exactly("qemu-img", arguments);
  }
}

TEST_CASE("differential: dd") {
  if (!have_qemu()) return test::skipped("there is no qemu-img; install qemu-utils");
  Pair pair;
  pair.both(kImages);
  int number = 0;
  for (const char* arguments : {"dd if=odd.raw",
                                "dd -f raw -O raw bs=1k count=3 if=odd.raw",
                                "dd -f raw -O raw bs=1k count=3 skip=1 if=odd.raw",
                                "dd bs=1k skip=10000 if=odd.raw",
                                "dd bs=1k skip=100 if=odd.raw",
                                "dd skip=1 bs=3k count=1 if=odd.raw",
                                "dd count=0 if=odd.raw",
                                "dd bs=1M if=a.raw",
                                "dd -U if=a.raw",
                                "dd bs=0 if=a.raw",
                                "dd bs=x if=a.raw",
                                "dd bs=-1 if=a.raw",
                                "dd count=x if=a.raw",
                                "dd skip=-1 if=a.raw",
                                "dd bs=2G if=a.raw",
                                "dd skip=9223372036854775807 bs=4k if=odd.raw",
                                "dd seek=3 if=a.raw",
                                "dd if=nothere",
                                "dd -f nofmt if=a.raw",
                                "dd -O nofmt if=a.raw",
                                "dd if=a.raw if=odd.raw",
                                "dd --image-opts if=driver=raw,file.filename=odd.raw"}) {
    const std::string target = "out" + std::to_string(++number);
    pair.img(std::string(arguments) + " of=" + target);
    pair.same(target);
  }
  for (const char* arguments :
       {"dd if=a.raw", "dd bogus", "dd", "dd -n if=a.raw of=x", "dd if=a.raw of=no/x"})
    pair.img(arguments);
  pair.img("dd -O vdi if=odd.raw of=odd.vdi");
  CHECK(test::run_command("qemu-img compare -q -f vdi -F raw '" + pair.ours("odd.vdi") + "' '" +
                          pair.ours("odd.raw") + "'")
            .status == 0);
  // What would destroy its own source is refused; qemu-img empties it.
  CHECK(test::run_command("'" SPINDLE_BINARY "' img dd if='" + pair.ours("a.raw") + "' of='" +
                          pair.ours("a.raw") + "'")
            .status == 1);
  pair.same("a.raw");
  for (const char* arguments :
       {"dd if=a.raw", "dd bogus", "dd seek=3 if=a.raw of=x", "dd bs=0 if=a.raw of=x"})
    pair.exactly("qemu-img", arguments);
}

TEST_CASE("differential: measure") {
  if (!have_qemu()) return test::skipped("there is no qemu-img; install qemu-utils");
  Pair pair;
  pair.both(kImages);
  for (const char* arguments :
       {"measure --size 10M", "measure -O raw --output=json --size 10M", "measure a.raw",
        "measure -O raw odd.raw", "measure", "measure --size 1M a.raw", "measure a.raw odd.raw",
        "measure --size x", "measure -f raw --size 1M", "measure -O nofmt --size 1M",
        "measure -O raw -o bogus=1 --size 1M", "measure --output=xml --size 1M", "measure -O raw --size 1000",
        "measure -o size=5M --size 1M", "measure -o preallocation=full a.raw", "measure --size 8E",
        "measure -f raw nothere", "measure -l x a.raw", "measure --size 0"}) {
    pair.img(arguments);
  }
  for (const char* arguments : {"measure", "measure --size 1M a.raw", "measure a.raw odd.raw",
                                "measure -O nofmt --size 1M", "measure --output=xml --size 1M"}) {
    pair.exactly("qemu-img", arguments);
  }
}

TEST_CASE("measure tells what a vdi image really takes") {
  test::TempDir dir;
  REQUIRE(dir.ok());
  const std::string at = "cd '" + dir.path() + "' && ", img = "'" SPINDLE_BINARY "' img ";
  const std::string written =
      " && '" SPINDLE_BINARY "' io -f raw -c 'write -q 100k 3M' -c 'write -q 9M 1' a.raw";
  REQUIRE(test::run_command(at + img + "create -q a.raw 10M" + written).status == 0);
  REQUIRE(test::run_command(at + img + "convert -f raw -O vdi a.raw a.vdi && " + img +
                            "convert -f raw -O vdi -o static=on a.raw s.vdi")
              .status == 0);
  const auto measured = [&](const std::string& arguments) {
    return test::run_command(at + img + "measure -O vdi " + arguments + " | tr -dc '0-9\\n'").output;
  };
  const auto size = [&](const std::string& name) {
    return test::run_command(at + "stat -c %s " + name).output;
  };
  CHECK(measured("-f raw a.raw") == size("a.vdi") + size("s.vdi"));
  CHECK(measured("-o static=on --size 10M") == size("s.vdi") + size("s.vdi"));
}

TEST_CASE("differential: convert of several images, and its limits") {
  if (!have_qemu()) return test::skipped("there is no qemu-img; install qemu-utils");
  Pair pair;
  pair.both(kImages);
  pair.both("truncate -s 1000448 odd.raw && truncate -s 20M room.raw");
  for (const char* arguments :
       {"convert -f raw -O raw a.raw odd.raw other.raw all.raw",
        "convert -n -f raw odd.raw hole.raw odd.raw room.raw", "convert -r 1G a.raw rate.raw",
        "convert -r x a.raw x.raw", "convert --salvage odd.raw salvaged.raw", "convert -C odd.raw c.raw",
        "convert -C -S 4k a.raw x.raw", "convert --salvage -C a.raw x.raw", "convert --bitmaps a.raw x.raw",
        "convert -l foo a.raw x.raw", "convert", "convert a.raw nothere all2.raw",
        "convert -f raw -f raw odd.raw -O raw last.raw", "convert -qWf raw odd.raw joined.raw",
        "convert --force-s odd.raw short.raw"}) {
    pair.img(arguments);
  }
  for (const char* name :
       {"all.raw", "room.raw", "rate.raw", "salvaged.raw", "c.raw", "last.raw", "joined.raw", "short.raw"}) {
    pair.same(name);
  }
}

TEST_CASE("the program under the names qemu-img and qemu-io") {
  test::TempDir dir;
  REQUIRE(dir.ok());
  for (const char* name : {"qemu-img", "qemu-io"})
    REQUIRE(test::run_command("ln -s '" SPINDLE_BINARY "' '" + dir.file(name) + "'").status == 0);
  const auto run = [&](const std::string& line) {
    return test::run_command("cd '" + dir.path() + "' && PATH=$PWD:$PATH; " + line);
  };
  for (const char* option : {"--version", "-V"}) {
    CHECK(run(std::string("qemu-img ") + option).output.starts_with("qemu-img version 7.2"));
    CHECK(run(std::string("qemu-io ") + option).output.starts_with("qemu-io version 7.2"));
  }
  for (const char* line : {"qemu-img --help", "qemu-img -h", "qemu-img resize --help", "qemu-io --help"}) {
    INFO(line);
    const auto help = run(line);
    CHECK(help.status == 0);
    CHECK(help.output.find("Usage: qemu-i") != std::string::npos);
    CHECK(help.output.find("spindle") == std::string::npos);
  }
  CHECK(run("qemu-img resize --help").output.find("--shrink") != std::string::npos);
  CHECK(run("qemu-img create -f vdi disk 3M && qemu-img info --output=json disk").status == 0);
  CHECK(run("qemu-io -c 'write 0 4k' -c 'read -P 0xcd 0 4k' disk").status == 0);
  CHECK(run("qemu-img -T x info disk").status == 0);
  CHECK(run("qemu-img info nothere").output ==
        "qemu-img: Could not open 'nothere': Could not open 'nothere': No such file or directory\n");
  CHECK(run("qemu-img frob").output ==
        "qemu-img: Command not found: frob\nTry 'qemu-img --help' for more information\n");
  CHECK(run("qemu-img frob").status == 1);
  CHECK(run("qemu-img").status == 1);
  CHECK(run("qemu-img info --object secret,id=s,data=x disk").status == 0);
  CHECK(run("qemu-img info --object iothread,id=s disk").status == 1);
}

}  // namespace spindle
