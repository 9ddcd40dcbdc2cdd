// A workshop for tests, with a directory of its own and the formats there are.
#pragma once

#include <doctest/doctest.h>

#include <fstream>
#include <memory>
#include <string>

#include "block/test_support/environment.h"
#include "formats/register_formats.h"
#include "image/open_image.h"

namespace spindle::image::test {

struct Shop {
  Shop() {
    register_formats(formats);
    auto made = Reactor::create();
    REQUIRE(made);
    reactor = std::move(*made);
    REQUIRE(dir.ok());
  }
  Workshop workshop() { return {.reactor = *reactor, .formats = formats, .notes = notes}; }
  template <typename T>
  T wait(Task<T> task) {
    return reactor->wait(std::move(task));
  }
  /// A file of these bytes; its path.
  std::string file(const std::string& name, const std::string& bytes) {
    std::ofstream(dir.file(name), std::ios::binary) << bytes;
    return dir.file(name);
  }
  std::string content(const std::string& name) {
    std::ifstream in(dir.file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  spindle::test::TempDir dir;
  FormatRegistry formats;
  std::unique_ptr<Reactor> reactor;
  Notes notes;
};

}  // namespace spindle::image::test
