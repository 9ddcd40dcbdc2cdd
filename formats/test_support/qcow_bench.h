// qcow2 images in files, for tests.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "block/protocols/file_node.h"
#include "block/test_support/environment.h"
#include "formats/qcow2/register.h"

namespace spindle::test {

struct QcowBench {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create());
  TempDir dir;

  template <typename T>
  static void require(const Result<T>& result) {
    REQUIRE_MESSAGE(result.has_value(), (result ? "" : result.error()->message()));
  }

  std::shared_ptr<FileNode> file(const std::string& path, bool read_only = false, bool direct = false) {
    auto node =
        FileNode::open(*reactor, {.path = path, .read_only = read_only, .direct = direct, .grows = true});
    require(node);
    return *node;
  }
  /// A new image; its path.
  std::string create(const std::string& name, uint64_t size, FormatOptions options = {}) {
    const std::string path = dir.file(name, 0);
    auto node = file(path);
    require(reactor->wait(qcow2::format().create(node, {.size = size, .options = std::move(options)})));
    require(reactor->wait(node->close()));
    return path;
  }
  Result<std::shared_ptr<Node>> try_open(const std::string& path, FormatOptions options = {},
                                         bool read_only = false) {
    auto child = file(path, read_only);
    auto node = reactor->wait(qcow2::format().open(child, OpenOptions{.options = std::move(options)}));
    if (!node) require(reactor->wait(child->close()));
    return node;
  }
  std::shared_ptr<Node> open(const std::string& path, FormatOptions options = {}) {
    auto node = try_open(path, std::move(options));
    require(node);
    return *node;
  }
  void close(std::shared_ptr<Node>& node) {
    require(reactor->wait(node->close()));
    node.reset();
  }
  CheckReport check(const std::string& path, Repair repair = Repair::None) {
    auto node = file(path);
    auto report = reactor->wait(qcow2::format().check(node, repair));
    require(report);
    require(reactor->wait(node->close()));
    return *report;
  }
  void write(Node& node, uint64_t offset, std::string text) {
    const iovec part{text.data(), text.size()};
    require(reactor->wait(node.write(offset, Buffers(std::span(&part, 1)), {})));
  }
  std::string read(Node& node, uint64_t offset, std::size_t length) {
    std::string text(length, '?');
    const iovec part{text.data(), text.size()};
    require(reactor->wait(node.read(offset, Buffers(std::span(&part, 1)))));
    return text;
  }
  void flush(Node& node) { require(reactor->wait(node.flush())); }
};

}  // namespace spindle::test
