// What tests of nodes over a file begin with: a reactor, a directory, and requests with their data in a
// string.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "block/protocols/file_node.h"
#include "block/test_support/environment.h"

namespace spindle::test {

struct FileBench {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create());
  TempDir dir;

  std::shared_ptr<FileNode> open(FileNode::Options options) {
    auto node = FileNode::open(*reactor, std::move(options));
    REQUIRE_MESSAGE(node.has_value(), (node ? "" : node.error()->message()));
    return *node;
  }
  /// Opens direct, or says why not and gives null.
  std::shared_ptr<FileNode> open_direct(const std::string& path) {
    auto node = FileNode::open(*reactor, {.path = path, .direct = true});
    if (node) return *node;
    CHECK(node.error()->message().find("cache=writeback") != std::string::npos);
    skipped("O_DIRECT: " + node.error()->message());
    return nullptr;
  }
  Result<> write(Node& node, uint64_t offset, std::string text, bool fua = false) {
    const iovec part{text.data(), text.size()};
    return reactor->wait(node.write(offset, Buffers(std::span(&part, 1)), {.fua = fua}));
  }
  std::string read(Node& node, uint64_t offset, std::size_t length) {
    std::string text(length, '?');
    const iovec part{text.data(), text.size()};
    auto result = reactor->wait(node.read(offset, Buffers(std::span(&part, 1))));
    CHECK_MESSAGE(result.has_value(), (result ? "" : result.error()->message()));
    return text;
  }
};

}  // namespace spindle::test
