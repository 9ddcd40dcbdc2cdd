#include "image/io_arguments.h"

#include <fmt/format.h>

#include "block/parse.h"

namespace spindle::image {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\v\f";

}  // namespace

std::vector<std::string> split_words(std::string_view line) {
  std::vector<std::string> words;
  while (true) {
    const auto begin = line.find_first_not_of(kBlanks);
    if (begin == line.npos) return words;
    line.remove_prefix(begin);
    const auto end = std::min(line.find_first_of(kBlanks), line.size());
    words.emplace_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

Parsed<IoArguments> parse_io_arguments(const std::vector<std::string>& words, std::string_view letters) {
  IoArguments found;
  bool options_ended = false;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (options_ended || word.size() < 2 || word[0] != '-') {
      found.rest.push_back(word);
      continue;
    }
    if (word == "--") {
      options_ended = true;
      continue;
    }
    for (std::size_t at = 1; at < word.size(); ++at) {
      const char letter = word[at];
      const auto known = letter == ':' ? letters.npos : letters.find(letter);
      if (known == letters.npos)
        return std::unexpected(fmt::format("{}: invalid option -- '{}'", words[0], letter));
      if (known + 1 >= letters.size() || letters[known + 1] != ':') {
        found.flags.insert(letter);
        continue;
      }
      if (at + 1 < word.size()) {
        found.values[letter] = word.substr(at + 1);
      } else if (i + 1 < words.size()) {
        found.values[letter] = words[++i];
      } else {
        return std::unexpected(fmt::format("{}: option requires an argument -- '{}'", words[0], letter));
      }
      break;
    }
  }
  return found;
}

Parsed<uint64_t> parse_io_size(const std::string& text) {
  if (const auto bytes = parse_size(text)) return *bytes;
  return std::unexpected(
      fmt::format("Parsing error: non-numeric argument, or extraneous/unrecognized suffix -- {}", text));
}

Parsed<uint8_t> parse_io_pattern(const std::string& text) {
  const auto number = parse_number(text);
  if (!number || *number > 0xff) return std::unexpected(fmt::format("{} is not a valid pattern byte", text));
  return static_cast<uint8_t>(*number);
}

}  // namespace spindle::image
