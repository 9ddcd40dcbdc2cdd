#include "block/disk_spec.h"

#include <doctest/doctest.h>

#include "block/parse.h"

namespace spindle {
namespace {

FormatRegistry registry() {
  FormatRegistry formats;
  formats.add({.name = "raw", .option_keys = {"offset", "size"}, .open = {}});
  formats.add({.name = "other", .option_keys = {"policy"}, .open = {}});
  return formats;
}

DiskSpec parsed(std::string_view text) {
  auto spec = parse_disk_spec(text, registry());
  REQUIRE_MESSAGE(spec.has_value(), (spec ? "" : spec.error()->message()));
  return *spec;
}

TEST_CASE("spec: defaults") {
  const auto spec = parsed("file=disk.img");
  CHECK(spec.file == "disk.img");
  CHECK(spec.format == "raw");
  CHECK(spec.interface == DiskInterface::Virtio);
  CHECK(spec.cache == CacheMode::Writeback);
  CHECK(!spec.read_only);
  CHECK(!spec.discard);
  CHECK(spec.locking == LockPolicy::Auto);
  CHECK(spec.flush_elision);
  CHECK(spec.queues == 1);
  CHECK(!spec.volatile_filter);
  CHECK(spec.read_errors == ErrorPolicy::Report);
  CHECK(!spec.write_errors);
}

TEST_CASE("spec: rerror and werror") {
  const auto options = disk_options(parsed("file=x,rerror=stop,werror=enospc"));
  CHECK(options.read_errors == ErrorPolicy::Stop);
  CHECK(options.write_errors == ErrorPolicy::StopIfNoSpace);
  CHECK(disk_options(parsed("file=x")).write_errors == ErrorPolicy::Report);
  CHECK(disk_options(parsed("file=x,werror=ignore")).write_errors == ErrorPolicy::Ignore);
}

TEST_CASE("spec: record=") {
  CHECK(parsed("file=x").record.empty());
  CHECK(parsed("file=x,record=a,,b.log").record == "a,b.log");
}

TEST_CASE("spec: a CD-ROM drive may be empty, and its media come and go") {
  const auto empty = parsed("if=ide,media=cdrom,bus=1,cache=none,rerror=stop,throttling.bps-total=5,id=cd");
  CHECK(empty.file.empty());
  CHECK(empty.read_only);
  const auto given = parsed(
      "file=a.iso,if=ide,media=cdrom,id=cd,format=other,policy=x,fault=read:1:EIO,volatile=on,"
      "cache=none,throttling.bps-total=5");
  for (const auto& drive : {empty, given}) {
    const auto next = with_medium(drive, "b,c.iso", "raw", registry());
    REQUIRE(next.has_value());
    CHECK(next->file == "b,c.iso");
    CHECK(next->format == "raw");
    CHECK(next->format_options.empty());
    CHECK(next->faults.empty());
    CHECK(!next->volatile_filter);
    CHECK(next->cache == CacheMode::None);
    CHECK(next->throttling == drive.throttling);
    CHECK(next->id == "cd");
    CHECK(next->cdrom);
    CHECK(next->read_only);
    CHECK(without_medium(*next).file.empty());
  }
  CHECK(!with_medium(empty, "", "raw", registry()));
  CHECK(!with_medium(empty, "nbd:x", "raw", registry()));
  CHECK(!with_medium(empty, "a", "vhdx", registry()));
}

TEST_CASE("spec: everything") {
  const auto spec = parsed(
      "file=a,,b.img,format=other,policy=x=y,if=ide,bus=1,unit=0,cache=directsync,readonly=on,serial=S "
      "1,id=d0,"
      "discard=unmap,locking=off,flush-elision=off,fault=flush:2:EIO;read:ENXIO,volatile=on,volatile-max=1M");
  CHECK(spec.file == "a,b.img");
  CHECK(spec.format == "other");
  CHECK(spec.format_options.at("policy") == "x=y");
  CHECK(spec.interface == DiskInterface::Ide);
  CHECK(spec.bus == 1u);
  CHECK(spec.unit == 0u);
  CHECK(spec.cache == CacheMode::Directsync);
  CHECK(spec.serial == "S 1");
  CHECK(spec.locking == LockPolicy::Off);
  CHECK(!spec.flush_elision);
  CHECK(spec.faults.size() == 2);
  CHECK(spec.volatile_max == 1 << 20);
  const auto options = disk_options(spec);
  CHECK(options.id == "d0");
  CHECK(options.cache == CacheMode::Directsync);
  CHECK(options.read_only);
  CHECK(options.discard);
}

TEST_CASE("spec: throttling by QEMU's names") {
  const auto spec = parsed(
      "file=x,throttling.bps-total=10M,throttling.bps-total-max=20971520,throttling.bps-total-max-length=5,"
      "throttling.iops-read=100,throttling.iops-write=50,throttling.iops-write-max=60,throttling.iops-size="
      "4k");
  CHECK(spec.throttling.rate(ThrottleKind::BpsTotal) ==
        ThrottleRate{.average = 10 << 20, .max = 20 << 20, .max_length = 5});
  CHECK(spec.throttling.rate(ThrottleKind::IopsRead) == ThrottleRate{.average = 100});
  CHECK(spec.throttling.rate(ThrottleKind::IopsWrite) == ThrottleRate{.average = 50, .max = 60});
  CHECK(spec.throttling.iops_size == 4096);
  CHECK(parsed("file=x").throttling == ThrottleLimits{});
}

TEST_CASE("spec: a CD-ROM is read-only, and on IDE") {
  CHECK(!parsed("file=x,if=ide,media=disk").cdrom);
  for (const char* text : {"file=x,if=ide,media=cdrom", "media=cdrom,readonly=on,if=ide,file=x"}) {
    CHECK(parsed(text).cdrom);
    CHECK(parsed(text).read_only);
    CHECK(disk_options(parsed(text)).read_only);
  }
}

TEST_CASE("spec: packed rings of a virtio disk") {
  CHECK_FALSE(parsed("file=x").packed);
  CHECK(parsed("file=x,packed=on").packed);
  CHECK_FALSE(parsed("file=x,packed=off,if=virtio").packed);
}

TEST_CASE("spec: queues of a virtio disk") {
  CHECK(parsed("file=x,queues=1").queues == 1);
  CHECK(parsed("queues=64,if=virtio,file=x").queues == 64);
}

TEST_CASE("spec: size belongs to the null protocol when that is the file, else to raw") {
  const auto null = parsed("file=null-co://,size=1G,read-zeroes=off");
  CHECK(null.null_size == 1ull << 30);
  CHECK(!null.null_read_zeroes);
  CHECK(null.format_options.empty());
  CHECK(parsed("file=x,size=1G").format_options.at("size") == "1G");
  CHECK(parsed("file=file:a:b").file == "file:a:b");
}

TEST_CASE("spec: every mistake is one line that names the option and what is allowed") {
  const struct {
    const char* text;
    const char* names;
    const char* says;
  } kMistakes[] = {
      {"", "file=", "it is empty"},
      {"format=raw", "file=", "missing"},
      {"file=", "file=", "name of a file"},
      {"file=a,file=b", "file", "twice"},
      {"file=a,colour=red", "colour=red", "cache"},
      {"file=a,policy=x", "policy=x", "offset"},
      {"file=a,format=qcow9", "format=qcow9", "other, raw"},
      {"file=a,if=scsi", "if=scsi", "virtio or ide"},
      {"file=a,cache=fast", "cache=fast", "directsync"},
      {"file=a,readonly=yes", "readonly=yes", "on or off"},
      {"file=a,readonly", "readonly", "key=value"},
      {"file=a,", "comma", "two commas"},
      {",file=a", "comma", "two commas"},
      {"file=a,serial=", "serial=", "1 to 20"},
      {"file=a,serial=123456789012345678901", "serial=", "1 to 20"},
      {"file=a,serial=\x01", "serial=", "printable"},
      {"file=a,if=ide,bus=2", "bus=2", "0 to 1"},
      {"file=a,if=ide,unit=-1", "unit=-1", "0 to 1"},
      {"file=a,bus=0", "bus=", "if=virtio"},
      {"file=a,queues=0", "queues=0", "1 to 64"},
      {"file=a,queues=65", "queues=65", "1 to 64"},
      {"file=a,queues=many", "queues=many", "1 to 64"},
      {"file=a,queues=4294967297", "queues=", "1 to 64"},
      {"file=a,queues=4,if=ide", "queues=", "if=virtio"},
      {"file=a,queues=1,if=ide", "queues=", "if=virtio"},
      {"file=a,media=floppy", "media=floppy", "disk or cdrom"},
      {"file=a,media=cdrom", "media=cdrom", "if=ide"},
      {"file=a,if=virtio,media=cdrom", "media=cdrom", "if=ide"},
      {"file=a,if=ide,media=cdrom,readonly=off", "readonly=off", "media=cdrom"},
      {"file=a,rerror=enospc", "rerror=enospc", "report, ignore or stop"},
      {"file=a,werror=panic", "werror=panic", "enospc"},
      {"file=a,packed=yes", "packed=yes", "on or off"},
      {"file=a,packed=off,if=ide", "packed=", "if=virtio"},
      {"file=a,discard=on", "discard=on", "unmap or ignore"},
      {"file=a,locking=maybe", "locking=maybe", "auto, on or off"},
      {"file=a,fault=flush:2:EWHAT", "fault=", "EWHAT"},
      {"file=a,volatile=on,volatile-max=1", "volatile-max=1", "64k"},
      {"file=a,volatile-max=1M", "volatile-max", "volatile=on"},
      {"file=a,record=", "record=", "the name of a file"},
      {"file=a,record=l,cache=unsafe", "record=", "cache=unsafe"},
      {"file=a,record=l,readonly=on", "record=", "readonly=on"},
      {"file=a,record=l,if=ide,media=cdrom", "record=", "media=cdrom"},
      {"file=a,throttling.iops=5", "throttling.iops=5", "throttling.iops-total"},
      {"file=a,throttling.iops-total=1k", "throttling.iops-total=1k", "a number"},
      {"file=a,throttling.bps-total=-1", "throttling.bps-total=-1", "a number of bytes"},
      {"file=a,throttling.bps-total=1E", "throttling.bps-total=", "at most 1000000000000000"},
      {"file=a,throttling.bps-total=5,throttling.bps-read=6", "throttling.bps-total", "throttling.bps-read"},
      {"file=a,throttling.iops-total-max=5", "throttling.iops-total-max", "needs throttling.iops-total "},
      {"file=a,throttling.iops-read=9,throttling.iops-read-max=5", "throttling.iops-read-max=5", "lower"},
      {"file=a,throttling.iops-read=9,throttling.iops-read-max-length=0", "max-length=0", "1 or more"},
      {"file=a,throttling.iops-read=9,throttling.iops-read-max-length=2", "max-length",
       "throttling.iops-read-max "},
      {"file=a,throttling.bps-read=1T,throttling.bps-read-max=1T,throttling.bps-read-max-length=1000000",
       "max-length=1000000", "too long"},
      {"if=ide", "file=", "name the image"},
      {"media=cdrom", "media=cdrom", "if=ide"},
      {"if=ide,media=cdrom,format=raw", "format=", "give file= too"},
      {"if=ide,media=cdrom,size=1M", "size=", "give file= too"},
      {"if=ide,media=cdrom,fault=read:1:EIO", "fault=", "give file= too"},
      {"file=a,throttling.iops-size=4k", "throttling.iops-size", "throttling.iops-total"},
      {"file=null-co://,size=x", "size=x", "a size"},
      {"file=null-co://disk", "null-co://", "size="},
      {"file=nbd://host/x", "nbd", "file:"},
      {"file=a,,b=c", "a,b=c", ""},
  };
  for (const auto& mistake : kMistakes) {
    auto spec = parse_disk_spec(mistake.text, registry());
    if (std::string_view(mistake.text) == "file=a,,b=c") {  // a file of an odd name is no mistake
      CHECK(spec->file == "a,b=c");
      continue;
    }
    REQUIRE_MESSAGE(!spec.has_value(), mistake.text);
    const std::string message = spec.error()->message();
    CHECK_MESSAGE(message.find(mistake.names) != std::string::npos, message);
    CHECK_MESSAGE(message.find(mistake.says) != std::string::npos, message);
    CHECK(message.find('\n') == std::string::npos);
    CHECK(spec.error()->kind == ErrorKind::Invalid);
  }
}

TEST_CASE("parse: sizes") {
  CHECK(parse_size("0") == 0);
  CHECK(parse_size("512") == 512);
  CHECK(parse_size("1k") == 1024);
  CHECK(parse_size("64K") == 65536);
  CHECK(parse_size("3M") == 3ull << 20);
  CHECK(parse_size("1.5G") == 3ull << 29);
  CHECK(parse_size("1.2k") == 1229);  // 1228.8, as QEMU's tools round it
  CHECK(parse_size("2T") == 2ull << 40);
  CHECK(parse_size("7E") == 7ull << 60);
  CHECK(parse_size("0x10") == 16);
  CHECK(parse_size("0x1b") == 27);
  CHECK(parse_size("9223372036854775807") == 9223372036854775807ull);
  for (const char* text :
       {"", "k", "-1", "+1", " 1", "1 ", "1.5", "1.k", ".5k", "1x", "8E", "9223372036854775808",
        "99999999999999999999", "9007199254740992k", "1kk", "0x", "1e3", "7.9999999999999999999E"}) {
    CHECK_MESSAGE(!parse_size(text).has_value(), text);
  }
  CHECK(format_size(0) == "0 B");
  CHECK(format_size(65536) == "64 KiB");
  CHECK(format_size(3ull << 29) == "1.5 GiB");
}

}  // namespace
}  // namespace spindle
