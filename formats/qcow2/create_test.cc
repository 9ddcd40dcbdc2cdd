// Making images: sound in the eyes of qemu-img, and the same in its words as what it makes itself.
#include "formats/qcow2/create.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "block/protocols/file_node.h"
#include "block/test_support/environment.h"
#include "formats/qcow2/describe.h"

using namespace spindle;
using namespace spindle::qcow2;

namespace {

struct Shop {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create());
  test::TempDir dir;

  std::shared_ptr<FileNode> file(const std::string& path) {
    auto node = FileNode::open(*reactor, {.path = path, .grows = true});
    REQUIRE(node);
    return *node;
  }
  Result<> create(const std::string& path, CreateOptions options) {
    auto node = file(dir.file(path, 0));
    auto made = reactor->wait(qcow2::create(*node, std::move(options)));
    REQUIRE(reactor->wait(node->close()));
    return made;
  }
  static Task<Result<std::shared_ptr<Node>>> make_file(Reactor& reactor, std::string path) {
    auto node = FileNode::open(reactor, {.path = path, .grows = true});
    if (!node) co_return std::unexpected(std::move(node.error()));
    co_return std::shared_ptr<Node>(std::move(*node));
  }
};

FormatOptions options_of(const std::string& list) {
  FormatOptions options;
  for (std::size_t at = 0; at < list.size();) {
    const auto end = std::min(list.find(',', at), list.size());
    const auto item = list.substr(at, end - at);
    options[item.substr(0, item.find('='))] = item.substr(item.find('=') + 1);
    at = end + 1;
  }
  return options;
}

std::string said(const std::string& command) {
  return test::run_command(command).output;
}

// What qemu-img says of the image, without what may differ: its name and the space it takes.
std::string info(const std::string& directory, const std::string& image) {
  return said(fmt::format("cd {} && qemu-img info --output=json {} | grep -v -e '\"filename' -e actual-size",
                          directory, image));
}

}  // namespace

TEST_CASE("new images are what qemu-img makes of the same options") {
  if (!test::have_program("qemu-img")) return test::skipped("no qemu-img");
  for (const std::string list :
       {"", "cluster_size=512", "cluster_size=2M", "compat=0.10", "refcount_bits=1", "refcount_bits=64",
        "lazy_refcounts=on", "extended_l2=on", "compression_type=zstd", "preallocation=metadata",
        "preallocation=metadata,cluster_size=512,refcount_bits=64", "preallocation=falloc",
        "preallocation=full,cluster_size=4k", "preallocation=metadata,extended_l2=on",
        "compat=v3,cluster_size=16384,extended_l2=on,refcount_bits=8"}) {
    CAPTURE(list);
    Shop shop;
    constexpr uint64_t kSize = (9 << 20) + 512;
    const auto made = shop.create("ours", {.size = kSize, .options = options_of(list)});
    REQUIRE_MESSAGE(made, (made ? "" : made.error()->message()));
    const std::string option = list.empty() ? "" : " -o " + list;
    REQUIRE(test::run_command(fmt::format("cd {} && qemu-img create -q -f qcow2{} theirs {}", shop.dir.path(),
                                          option, kSize))
                .status == 0);
    CHECK(info(shop.dir.path(), "ours") == info(shop.dir.path(), "theirs"));
    const auto check = test::run_command("qemu-img check -f qcow2 " + shop.dir.file("ours"));
    CHECK_MESSAGE(check.status == 0, check.output);
    const auto compare =
        test::run_command(fmt::format("cd {} && qemu-img compare ours theirs", shop.dir.path()));
    CHECK_MESSAGE(compare.status == 0, compare.output);
    CHECK(test::run_command("qemu-io -c 'write -P 7 1M 3M' -c 'read -P 7 1M 3M' " + shop.dir.file("ours") +
                            " && qemu-img check " + shop.dir.file("ours"))
              .status == 0);
  }
}

TEST_CASE("an overlay names its backing file") {
  if (!test::have_program("qemu-img")) return test::skipped("no qemu-img");
  Shop shop;
  REQUIRE(said("cd " + shop.dir.path() +
               " && qemu-img create -q -f raw base 1M && qemu-io -f raw -c 'write -P 5 0 1M' base")
              .find("wrote") != std::string::npos);
  for (const std::string list : {"", "extended_l2=on,preallocation=metadata"}) {
    CreateOptions options{.size = 1 << 20, .options = options_of(list)};
    options.backing = OtherFile{.name = "base", .format = "raw"};
    REQUIRE(shop.create("over", std::move(options)));
    const auto read = test::run_command("cd " + shop.dir.path() +
                                        " && qemu-io -c 'read -P 5 0 1M' over && qemu-img check over");
    CHECK_MESSAGE(read.status == 0, read.output);
    CHECK(read.output.find("ailed") == std::string::npos);
    CHECK(info(shop.dir.path(), "over").find("\"backing-filename-format\": \"raw\"") != std::string::npos);
  }
}

TEST_CASE("a data file is made by who can reach it") {
  Shop shop;
  CreateOptions options{.size = 1 << 20, .options = options_of("data_file=data,data_file_raw=on")};
  CHECK(shop.create("image", options).error()->kind == ErrorKind::NotSupported);
  options.make_data_file = [&shop](std::string name) {
    return Shop::make_file(*shop.reactor, shop.dir.file(name, 0));
  };
  REQUIRE(shop.create("image", options));
  CHECK(std::filesystem::file_size(shop.dir.file("data")) == 1 << 20);
  if (!test::have_program("qemu-img")) return test::skipped("no qemu-img");
  const auto check =
      test::run_command("cd " + shop.dir.path() +
                        " && qemu-img check image && qemu-io -c 'write 0 1M' image && qemu-img check image");
  CHECK_MESSAGE(check.status == 0, check.output);
  REQUIRE(test::run_command("cd " + shop.dir.path() +
                            " && qemu-img create -q -f qcow2 -o data_file=data2,data_file_raw=on theirs 1M")
              .status == 0);
  auto node = shop.file(shop.dir.file("image"));
  const auto description = shop.reactor->wait(describe(*node));
  REQUIRE(description);
  REQUIRE(description->data_file);
  CHECK(description->data_file->name == "data");
  CHECK(description->facts.size() == 8);
  REQUIRE(shop.reactor->wait(node->close()));
}

TEST_CASE("what cannot be made is refused before anything is lost") {
  Shop shop;
  for (const std::string list : {"compat=2",
                                 "cluster_size=3000",
                                 "cluster_size=256",
                                 "cluster_size=4M",
                                 "refcount_bits=3",
                                 "refcount_bits=128",
                                 "compat=0.10,lazy_refcounts=on",
                                 "compat=0.10,refcount_bits=8",
                                 "compat=v2,extended_l2=on",
                                 "extended_l2=on,cluster_size=8k",
                                 "compat=v2,compression_type=zstd",
                                 "compression_type=lz4",
                                 "preallocation=some",
                                 "data_file_raw=on",
                                 "backing_fmt=raw",
                                 "encryption=on",
                                 "encrypt.format=luks",
                                 "fast=on",
                                 "lazy_refcounts=maybe",
                                 "preallocation=full,backing_file=b",
                                 "data_file=d,data_file_raw=on,backing_file=b"}) {
    CAPTURE(list);
    CHECK_FALSE(plan_image({.size = 1 << 20, .options = options_of(list)}, "image"));
  }
  CHECK_FALSE(plan_image({.size = 1000}, "image"));
  CHECK_FALSE(plan_image({.size = uint64_t{1} << 62}, "image"));
  CHECK_FALSE(plan_image({.size = uint64_t{1} << 40, .options = options_of("cluster_size=512")}, "image"));
  CHECK(plan_image({.size = uint64_t{1} << 50}, "image"));
  CreateOptions long_name{.size = 512};
  long_name.backing = OtherFile{.name = std::string(1024, 'x')};
  CHECK_FALSE(shop.create("image", long_name));
}

TEST_CASE("an image is measured as qemu-img measures it") {
  if (!test::have_program("qemu-img")) return test::skipped("no qemu-img");
  for (const std::string list :
       {"", "cluster_size=512", "cluster_size=2M", "refcount_bits=1", "refcount_bits=64,cluster_size=4k",
        "extended_l2=on", "preallocation=falloc", "preallocation=metadata"}) {
    for (const uint64_t size : {uint64_t{0}, uint64_t{512}, uint64_t{1} << 20, uint64_t{10} << 30}) {
      CAPTURE(list);
      CAPTURE(size);
      const auto ours = measure({.size = size, .options = options_of(list)}, [](uint64_t) { return 0; });
      REQUIRE(ours);
      const std::string option = list.empty() ? "" : " -o " + list;
      CHECK(said(fmt::format("qemu-img measure -O qcow2{} --size {}", option, size)) ==
            fmt::format("required size: {}\nfully allocated size: {}\n", ours->required,
                        ours->fully_allocated));
    }
  }
}
