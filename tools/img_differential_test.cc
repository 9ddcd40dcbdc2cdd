// The same commands through `spindle img` and `spindle io` and through Debian's qemu-img and qemu-io, each
// pair in two directories of the same content: what they print, how they end and what they leave must be
// equal. Messages of errors differ (ours say what to do), so of those only the status is compared.
#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "block/test_support/environment.h"
#include "tools/differential_pair.h"

namespace spindle {
namespace {

using test::have_qemu;
using test::Pair;

// 10 MiB with data in the first 64 KiB and from 1 to 2 MiB.
constexpr const char* kPatches =
    "qemu-img create -q -f raw a.raw 10M && qemu-io -f raw -c 'write 0 64k' -c 'write -P 7 1M 1M' a.raw";

}  // namespace

TEST_CASE("differential: create") {
  if (!have_qemu()) return test::skipped("there is no qemu-img; install qemu-utils");
  Pair pair;
  for (const char* arguments : {"create a.raw 1M",
                                "create -f raw a.raw 1000",
                                "create -f raw b.raw 1.5G",
                                "create -o size=10M c.raw",
                                "create -q d.raw 3k",
                                "create -f raw -o preallocation=full e.raw 100k",
                                "create f.raw 0x1000",
                                "create -f raw -o preallocation=falloc,size=1M g.raw",
                                "create h,i.raw 1.2k",
                                "create a.raw",
                                "create a.raw bogus",
                                "create a.raw 8E",
                                "create a.raw -- -1",
                                "create",
                                "create -f nofmt a.raw 1M",
                                "create -o colour=red a.raw 1M",
                                "create -f raw -b base a.raw 1M",
                                "create a.raw 1M more",
                                "create --bogus a.raw 1M",
                                "bogus",
                                "create -o size=1M,size=2M z.raw"}) {
    pair.img(arguments);
  }
  for (const char* name : {"a.raw", "c.raw", "d.raw", "e.raw", "f.raw", "g.raw", "h,i.raw", "z.raw"})
    pair.same(name);
}

TEST_CASE("differential: info, map and check") {
  if (!have_qemu()) return test::skipped("there is no qemu-img; install qemu-utils");
  Pair pair;
  pair.both(kPatches);
  pair.both("mkdir d");
  for (const char* arguments : {"info -f raw a.raw",
                                "info a.raw",
                                "info -f raw --output=json a.raw",
                                "info --output=human a.raw",
                                "info --output=xml a.raw",
                                "info nothere",
                                "info d",
                                "info",
                                "info -f nofmt a.raw",
                                "info -U -f raw a.raw",
                                "info -f raw --backing-chain --output=json a.raw",
                                "info --image-opts driver=raw,file.filename=a.raw",
                                "map -f raw a.raw",
                                "map a.raw",
                                "map -f raw --output=json a.raw",
                                "map -f raw --output=json -s 512k -l 1M a.raw",
                                "map -f raw --start-offset=1M --max-length=3 a.raw",
                                "map -f raw --output=json --start-offset=20M a.raw",
                                "map -f raw --output=json -s 10M a.raw",
                                "map --output=xml a.raw",
                                "map nothere",
                                "check -f raw a.raw",
                                "check -f raw --output=json a.raw",
                                "check -q -f raw a.raw",
                                "check nothere",
                                "check -r bogus a.raw",
                                "check -r all -f raw a.raw",
                                "check --bogus a.raw",
                                "check"}) {
    pair.img(arguments);
  }
}

TEST_CASE("differential: convert") {
  if (!have_qemu()) return test::skipped("there is no qemu-img; install qemu-utils");
  Pair pair;
  pair.both(kPatches);
  pair.both("head -c 3000000 '" SPINDLE_BINARY "' >p.raw && truncate -s 3072000 p.raw");
  pair.both("qemu-img create -q small.raw 1M");
  for (const char* arguments : {"convert -f raw -O raw a.raw b.raw",
                                "convert a.raw c.raw",
                                "convert -f raw -m 1 p.raw d.raw",
                                "convert -f raw -W -m 16 -S 64k p.raw e.raw",
                                "convert -f raw -S 0 a.raw f.raw",
                                "convert -f raw -t none -T none p.raw g.raw",
                                "convert -f raw -t unsafe p.raw h.raw",
                                "convert -n -f raw -O raw a.raw small.raw",
                                "convert a.raw a.raw",
                                "convert nothere x.raw",
                                "convert a.raw nowhere/x.raw",
                                "convert a.raw",
                                "convert -n a.raw nothere.raw",
                                "convert -c a.raw x.raw",
                                "convert -O bogus a.raw x.raw",
                                "convert -t bogus a.raw x.raw",
                                "convert -T bogus a.raw x.raw",
                                "convert -m 0 a.raw x.raw",
                                "convert -m 17 a.raw x.raw",
                                "convert -S 3 a.raw x.raw",
                                "convert -S 32M a.raw x.raw",
                                "convert -o colour=red a.raw x.raw",
                                "convert a.raw .",
                                "convert --target-is-zero a.raw x.raw",
                                "convert -f raw -O raw -n p.raw a.raw"}) {
    pair.img(arguments);
  }
  for (const char* name :
       {"a.raw", "b.raw", "c.raw", "d.raw", "e.raw", "f.raw", "g.raw", "h.raw", "small.raw"})
    pair.same(name);
  for (const char* name : {"b.raw", "e.raw", "f.raw"}) {
    pair.img(std::string("map -f raw --output=json ") + name);
  }
}

TEST_CASE("differential: bench") {
  if (!have_qemu()) return test::skipped("there is no qemu-img; install qemu-utils");
  Pair pair;
  pair.both(kPatches);
  for (const char* arguments :
       {"bench -f raw -c 10 a.raw", "bench -f raw -c 0 a.raw",
        "bench -f raw -w -c 20 -d 1 -s 64k -S 1M --pattern=5 a.raw",
        "bench -f raw -w -c 100 -d 8 --flush-interval=16 a.raw",
        "bench -f raw -w -c 100 -d 8 --flush-interval=16 --no-drain -o 1M a.raw",
        "bench -f raw -q -c 3 a.raw", "bench -f raw -w -c 100 --flush-interval=16 a.raw",
        "bench -f raw -c 100 --flush-interval=64 a.raw", "bench -f raw --pattern=256 -w a.raw",
        "bench -f raw -t bogus a.raw", "bench -f raw -i bogus a.raw", "bench nothere"}) {
    pair.img(arguments);
  }
  pair.same("a.raw");
}

TEST_CASE("differential: io") {
  if (!have_qemu()) return test::skipped("there is no qemu-io; install qemu-utils");
  Pair pair;
  pair.both("qemu-img create -q io.raw 1M && printf abc >pattern");
  const std::vector<std::string> commands = {"write 0 64k",
                                             "write -P 0xab 100 5",
                                             "write -z 64k 64k",
                                             "write -zu 128k 4k",
                                             "write -f 0 4k",
                                             "write -q 0 4k",
                                             "write -C 0 4k",
                                             "read -v 0 40",
                                             "read -C 0 4k",
                                             "read -q 0 4k",
                                             "read -P 0xcd 0 4k",
                                             "read -P 0xcd -s 1k -l 1k 0 4k",
                                             "read -P 1 -s 1k -l 1k 0 4k",
                                             "length",
                                             "read 0",
                                             "read",
                                             "read bogus 3",
                                             "read 0 bogus",
                                             "read 2M 512",
                                             "read 0 2M",
                                             "write 1M 512",
                                             "discard 0 64k",
                                             "discard -q 0 64k",
                                             "discard 2M 4k",
                                             "discard 1",
                                             "flush",
                                             "bogus",
                                             "help bogus",
                                             "help length",
                                             "write -u 0 4k",
                                             "write -P 256 0 4k",
                                             "write -P 3 -z 0 4k",
                                             "read -P 1 -s 8k 0 4k",
                                             "write 0 4g",
                                             "  write   0   4k  ",
                                             "",
                                             "w 0 1k",
                                             "r 0 1k",
                                             "f",
                                             "l",
                                             "read -v 0 0x30",
                                             "read 0 1.5k",
                                             "write 0 1.2k",
                                             "write -s pattern 0 4k",
                                             "write -s nothere 0 4k",
                                             "write -s /dev/null 0 4k",
                                             "read 5000 1",
                                             "discard 4k 8k"};
  for (const std::string& command : commands) pair.io("-f raw -c '" + command + "' io.raw");
  pair.io(
      "-f raw -c 'write -P 5 0 1M' -c 'write -z 1k 100' -c 'read -P 5 0 1k' -c quit -c 'write 0 1M' io.raw");
  pair.io("-f raw -n -c 'write 100 5000' -c 'read -P 0xcd 100 5000' io.raw");
  pair.io("-f raw -t writethrough -c 'write 0 4k' io.raw");
  pair.io("-r -f raw -c 'read 0 4k' io.raw");
  pair.io("-U -r -f raw -c 'read 0 4k' io.raw");
  for (const char* arguments : {"-f raw nothere -c 'read 0 4k'", "-f nofmt io.raw -c 'read 0 4k'",
                                "-f raw -t bogus io.raw -c 'read 0 4k'", "--bogus io.raw", "-f raw a b"}) {
    pair.io(std::string(arguments) + " >/dev/null");
  }
  pair.same("io.raw");
}

TEST_CASE("differential: vdi, made and read by both") {
  if (!have_qemu()) return test::skipped("there is no qemu-img; install qemu-utils");
  Pair pair;
  pair.both(kPatches);
  pair.both("head -c 3000000 '" SPINDLE_BINARY "' >p.raw && truncate -s 5767680 p.raw");  // no whole block
  pair.img("create -f vdi c.vdi 10M");
  pair.img("create -f vdi -o static=on s.vdi 3M");
  pair.img("create -f vdi c.vdi 1000T");
  for (const char* arguments :
       {"convert -f raw -O vdi a.raw a.vdi", "convert -f raw -O vdi -m 1 p.raw p.vdi",
        "convert -f raw -O vdi -o static=on p.raw static.vdi", "convert -f raw -O vdi -t none p.raw none.vdi",
        "check -q a.vdi", "check -q static.vdi", "check -f vdi a.raw", "info -f vdi a.raw"}) {
    pair.img(arguments);
  }
  // Each in the other's image, byte for byte.
  for (const char* name : {"a", "p", "static", "none"}) {
    INFO(name);
    const std::string image = std::string(name) + ".vdi";
    const std::string raw = std::string(name) == "a" ? "a.raw" : "p.raw";
    CHECK(test::run_command("qemu-img compare -f vdi -F raw '" + pair.ours(image) + "' '" + pair.ours(raw) +
                            "'")
              .status == 0);
    CHECK(test::run_command("qemu-img check -f vdi '" + pair.ours(image) + "'").status == 0);
    CHECK(test::run_command("'" SPINDLE_BINARY "' img convert -f vdi -O raw '" + pair.theirs(image) + "' '" +
                            pair.ours("back") + "' && cmp '" + pair.ours("back") + "' '" + pair.ours(raw) +
                            "'")
              .status == 0);
    CHECK(test::run_command("'" SPINDLE_BINARY "' img check '" + pair.theirs(image) + "'").status == 0);
  }
  // Into what qemu-img made, also over what is there.
  pair.both("qemu-img create -q -f vdi n.vdi 20M && qemu-io -f vdi -c 'write -P 9 0 20M' n.vdi");
  pair.img("convert -n -f raw -O vdi a.raw n.vdi");
  CHECK(test::run_command("qemu-img compare -f vdi -F vdi '" + pair.ours("n.vdi") + "' '" +
                          pair.theirs("n.vdi") + "'")
            .status == 0);
  pair.io("-f vdi -c 'read -P 0 3M 1M' -c 'read -P 9 12M 1M' -c 'write -P 3 0 3M' -c 'discard 5M 1M' n.vdi");
  // Cut short: whoever opens it refuses or reads zeroes, and nothing dies.
  for (const char* size : {"0", "1", "511", "600", "1048576"}) {
    pair.both("cp a.vdi cut.vdi && truncate -s " + std::string(size) + " cut.vdi");
    for (const char* command : {"info -f vdi", "check -f vdi", "map -f vdi"}) {
      INFO(command << " " << size);
      CHECK(test::run_command("timeout 20 '" SPINDLE_BINARY "' img " + std::string(command) + " '" +
                              pair.ours("cut.vdi") + "'")
                .status <= 3);
    }
  }
}

TEST_CASE("differential: each reads what the other wrote, and keeps out while it is open") {
  if (!have_qemu()) return test::skipped("there is no qemu-io; install qemu-utils");
  Pair pair;
  pair.both(kPatches);
  const std::string image = pair.ours("a.raw");
  CHECK(test::run_command("qemu-io -f raw -c 'write -P 9 5M 64k' '" + image + "'").status == 0);
  CHECK(test::run_command("'" SPINDLE_BINARY "' io -f raw -c 'read -P 9 5M 64k' -c 'write -P 4 6M 3' '" +
                          image + "'")
            .status == 0);
  CHECK(test::run_command("qemu-io -f raw -c 'read -P 4 6M 3' '" + image + "'").status == 0);
  // qemu-io holds the image from its first answer until its input ends; the same with ours.
  const auto while_held = [&](const std::string& holder, const std::string& command) {
    const std::string script = "coproc held { " + holder +
                               "; } 2>/dev/null; in=${held[1]}; echo length >&$in; " +
                               "read -r line <&${held[0]}; timeout 20 " + command +
                               " >/dev/null 2>&1; echo status $?; eval \"exec $in>&-\"; wait";
    std::ofstream(pair.ours("script")) << script;
    return test::run_command("timeout 60 bash '" + pair.ours("script") + "'").output;
  };
  const std::string own_img = "'" SPINDLE_BINARY "' img ",
                    own_io = "'" SPINDLE_BINARY "' io -f raw '" + image + "'";
  const std::string their_io = "qemu-io -f raw '" + image + "'";
  const auto quoted = " '" + image + "'";
  CHECK(while_held(their_io, own_img + "info -f raw" + quoted) == "status 1\n");
  CHECK(while_held(their_io, own_img + "create" + quoted + " 1M") == "status 1\n");
  CHECK(while_held(their_io, own_img + "info -U -f raw" + quoted) == "status 0\n");
  CHECK(while_held(own_io, "qemu-img convert -f raw" + quoted + quoted + ".copy") == "status 1\n");
  CHECK(while_held(own_io, own_img + "convert -f raw" + quoted + quoted + ".copy") == "status 1\n");
  CHECK(test::run_command("stat -c %s" + quoted).output == "10485760\n");
}

}  // namespace spindle
