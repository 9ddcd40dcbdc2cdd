#include "tools/word_order.h"

#include <fmt/format.h>
#include <getopt.h>

#include <map>

namespace spindle::tools {
namespace {

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_min() > 0;
}

// The options of a command as getopt_long() wants to be told of them.
class Table {
 public:
  explicit Table(const CLI::App& command) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_snames()) {
        letters_ += name;
        if (takes_value(*option)) letters_ += ':';
        short_options_[static_cast<unsigned char>(name[0])] = option;
      }
      for (const std::string& name : option->get_lnames()) {
        const int argument = takes_value(*option) ? required_argument : no_argument;
        longs_.push_back(
            {name.c_str(), argument, nullptr, kFirstLong + static_cast<int>(long_options_.size())});
        long_options_.push_back(option);
      }
    }
    longs_.push_back({});
  }
  const char* letters() const { return letters_.c_str(); }
  const option* longs() const { return longs_.data(); }
  const CLI::Option* find(int code) const {
    if (code >= kFirstLong) return long_options_[static_cast<std::size_t>(code - kFirstLong)];
    return short_options_[static_cast<std::size_t>(code)];
  }

 private:
  static constexpr int kFirstLong = 256;

  std::string letters_ = ":";  // a missing value is told from an unknown option
  std::vector<option> longs_;
  std::vector<const CLI::Option*> long_options_;
  const CLI::Option* short_options_[kFirstLong] = {};
};

}  // namespace

std::expected<std::vector<std::string>, std::string> ordered_words(const CLI::App& command,
                                                                   const std::vector<std::string>& words) {
  const Table table(command);
  std::vector<std::string> copies = {command.get_name()};
  copies.insert(copies.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (std::string& word : copies) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int count = static_cast<int>(copies.size());

  std::vector<std::string> ordered;
  // Of options that take one value the last one counts, and the parser would refuse to see two.
  std::map<const CLI::Option*, std::size_t> only;  // where its value is
  opterr = 0;                                      // it is us who complain
  optind = 0;                                      // begin anew
  while (true) {
    const int code = getopt_long(count, arguments.data(), table.letters(), table.longs(), nullptr);
    if (code == -1) break;
    if (code == '?') return std::unexpected(fmt::format("unrecognized option '{}'", arguments[optind - 1]));
    if (code == ':')
      return std::unexpected(fmt::format("missing argument for option '{}'", arguments[optind - 1]));
    const CLI::Option& found = *table.find(code);
    const auto& longs = found.get_lnames();
    const bool once =
        takes_value(found) && found.get_multi_option_policy() != CLI::MultiOptionPolicy::TakeAll;
    if (const auto seen = only.find(&found); once && seen != only.end()) {
      ordered[seen->second] = optarg;
      continue;
    }
    ordered.push_back(longs.empty() ? "-" + found.get_snames().front() : "--" + longs.front());
    if (once) only.emplace(&found, ordered.size());
    if (takes_value(found)) ordered.emplace_back(optarg);
  }
  if (optind < count) ordered.emplace_back("--");
  for (int i = optind; i < count; ++i) ordered.emplace_back(arguments[i]);
  return ordered;
}

}  // namespace spindle::tools
