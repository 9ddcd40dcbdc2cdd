// For tests: the same commands through `spindle img` and `spindle io` and through Debian's qemu-img and
// qemu-io, each in a directory of its own with the same content.
#pragma once

#include <doctest/doctest.h>

#include <regex>
#include <string>

#include "block/test_support/environment.h"

namespace spindle::test {

inline bool have_qemu() {
  return have_program("qemu-img") && have_program("qemu-io");
}

// Speeds differ.
inline std::string without_times(const std::string& text) {
  static const std::regex speed("[0-9:.]+( sec)? \\([^)]*/sec and [^)]* ops/sec\\)");
  static const std::regex completed("Run completed in [0-9.]+ seconds");
  static const std::regex terse("([0-9]+,1),[0-9:.]+,[0-9.]+,[0-9.]+");
  return std::regex_replace(
      std::regex_replace(std::regex_replace(text, speed, "TIME"), completed, "Run completed"), terse,
      "$1,TIME");
}

class Pair {
 public:
  Pair() {
    REQUIRE(ours_.ok());
    REQUIRE(theirs_.ok());
  }
  // A shell command in both directories; for the preparation.
  void both(const std::string& command) {
    for (const auto* dir : {&ours_, &theirs_})
      REQUIRE(run_command("cd '" + dir->path() + "' && " + command).status == 0);
  }
  void img(const std::string& arguments) { compare("'" SPINDLE_BINARY "' img ", "qemu-img ", arguments); }
  void io(const std::string& arguments) { compare("'" SPINDLE_BINARY "' io ", "qemu-io ", arguments); }
  // Ours is started under their name, and what both print on standard error must be equal, too.
  void exactly(const std::string& tool, const std::string& arguments) {
    const std::string link = links_.file(tool);
    REQUIRE(run_command("ln -sf '" SPINDLE_BINARY "' '" + link + "'").status == 0);
    compare("'" + link + "' ", tool + " ", arguments, "2>&1");
  }
  // The same bytes under this name, or no such file for both.
  void same(const std::string& name) {
    INFO(name);
    const std::string own = "'" + ours_.file(name) + "'", other = "'" + theirs_.file(name) + "'";
    CHECK(run_command("[ ! -e " + own + " ] && [ ! -e " + other + " ] || cmp " + own + " " + other).status ==
          0);
  }
  std::string ours(const std::string& name) { return ours_.file(name); }
  std::string theirs(const std::string& name) { return theirs_.file(name); }

 private:
  void compare(const std::string& us, const std::string& them, const std::string& arguments,
               const std::string& errors = "2>/dev/null") {
    const auto run = [&](const TempDir& dir, const std::string& program) {
      Command result = run_command("cd '" + dir.path() + "' && { timeout 60 " + program + arguments +
                                   " </dev/null " + errors + "; }");
      result.output = without_times(result.output);
      return result;
    };
    const Command own = run(ours_, us), other = run(theirs_, them);
    INFO(arguments);
    CHECK(own.output == other.output);
    CHECK(own.status == other.status);
  }

  TempDir ours_, theirs_, links_;
};

}  // namespace spindle::test
