// The command lines of `spindle io`: words, options of one letter, numbers of bytes; with the messages that
// qemu-io has for what is wrong with them.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace spindle::image {

/// Words between blanks; there is no quoting.
std::vector<std::string> split_words(std::string_view line);

struct IoArguments {
  std::set<char> flags = {};
  std::map<char, std::string> values = {};
  std::vector<std::string> rest = {};

  bool has(char flag) const { return flags.contains(flag); }
  const std::string* value(char option) const {
    const auto found = values.find(option);
    return found == values.end() ? nullptr : &found->second;
  }
};

/// Either what was asked for, or a line that says what is wrong.
template <typename T>
using Parsed = std::expected<T, std::string>;

/// `letters` as getopt() takes them: "Cqv" are flags, "P:" takes a value. Options and the rest may be mixed.
/// words[0] is the command's name.
Parsed<IoArguments> parse_io_arguments(const std::vector<std::string>& words, std::string_view letters);

/// A number of bytes, with the suffixes of img.
Parsed<uint64_t> parse_io_size(const std::string& text);
/// A byte's value, decimal or 0x.
Parsed<uint8_t> parse_io_pattern(const std::string& text);

}  // namespace spindle::image
