// What tests of overlays begin with: images of the toy format, and raw files, in a directory of their own.
#pragma once

#include "block/graph.h"
#include "block/test_support/file_bench.h"
#include "formats/register_formats.h"
#include "formats/test_support/cow_toy.h"

namespace spindle::test {

struct CowToyBench : FileBench {
  static constexpr uint64_t kSize = 8 * CowToy::kSector;

  FormatRegistry formats;
  std::vector<std::string> notes;

  CowToyBench() {
    register_formats(formats);
    formats.add(CowToy::format());
  }

  /// A toy image; its path.
  std::string toy(const std::string& name, CowToy::Names names = {}) {
    const std::string path = dir.file(name, 0);
    auto file = open({.path = path});
    REQUIRE(reactor->wait(CowToy::create(file, kSize, std::move(names))).has_value());
    REQUIRE(reactor->wait(file->close()).has_value());
    return path;
  }
  std::string raw(const std::string& name, char fill) {
    const std::string path = dir.file(name, kSize);
    auto file = open({.path = path});
    REQUIRE(write(*file, 0, std::string(kSize, fill)).has_value());
    REQUIRE(reactor->wait(file->close()).has_value());
    return path;
  }
  Result<std::shared_ptr<Node>> graph(const std::string& options) {
    auto spec = parse_disk_spec(options, formats);
    if (!spec) return std::unexpected(std::move(spec.error()));
    return reactor->wait(open_graph(*reactor, *spec, formats, notes));
  }
  std::shared_ptr<Node> opened(const std::string& options) {
    auto node = graph(options);
    REQUIRE_MESSAGE(node.has_value(), (node ? "" : node.error()->message()));
    return *node;
  }
  /// The message of the error, which there must be.
  std::string refused(const std::string& options) {
    auto node = graph(options);
    REQUIRE(!node.has_value());
    return node.error()->message();
  }
  void close(Node& node) { CHECK(reactor->wait(node.close()).has_value()); }
};

inline bool says(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

}  // namespace spindle::test
