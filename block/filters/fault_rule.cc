#include "block/filters/fault_rule.h"

#include <fmt/format.h>

#include <cerrno>
#include <limits>
#include <string>
#include <utility>

#include "block/parse.h"

namespace spindle {
namespace {

constexpr std::pair<std::string_view, FaultKind> kKinds[] = {
    {"read", FaultKind::Read},       {"write", FaultKind::Write}, {"write_zeroes", FaultKind::WriteZeroes},
    {"discard", FaultKind::Discard}, {"flush", FaultKind::Flush}, {"fua", FaultKind::Fua},
    {"any", FaultKind::Any},
};

constexpr std::pair<std::string_view, int> kErrors[] = {
    {"EIO", EIO},       {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT},         {"EFBIG", EFBIG},
    {"EROFS", EROFS},   {"EPERM", EPERM},   {"EACCES", EACCES},         {"EINVAL", EINVAL},
    {"ENOMEM", ENOMEM}, {"EAGAIN", EAGAIN}, {"EOPNOTSUPP", EOPNOTSUPP}, {"ENOTSUP", ENOTSUP},
    {"EBADF", EBADF},   {"ENXIO", ENXIO},   {"ETIMEDOUT", ETIMEDOUT},   {"EREMOTEIO", EREMOTEIO},
};

constexpr int kLargestErrno = 4095;  // as the kernel has it
constexpr uint64_t kLongestDelay = 3'600'000;

std::optional<int> errno_of(std::string_view text) {
  for (const auto& [name, number] : kErrors) {
    if (name == text) return number;
  }
  return std::nullopt;
}

std::optional<FaultRule::Range> range_of(std::string_view text) {
  const auto plus = text.find('+');
  if (plus == text.npos) return std::nullopt;
  const auto offset = parse_size(text.substr(0, plus));
  const auto length = parse_size(text.substr(plus + 1));
  if (!offset || !length || *length == 0) return std::nullopt;
  return FaultRule::Range{*offset, *length};  // both fit 63 bits, so their sum fits
}

Error bad_rule(std::string_view rule, std::string_view item, std::string_view what) {
  return Error::invalid("disk option", "", fmt::format("fault={}: \"{}\" {}", rule, item, what));
}

std::string_view next_part(std::string_view& text, char separator) {
  const auto end = text.find(separator);
  const auto part = text.substr(0, end);
  text = end == text.npos ? std::string_view{} : text.substr(end + 1);
  return part;
}

Result<FaultRule> parse_rule(const std::string_view rule) {
  FaultRule result;
  std::string_view rest = rule;
  const auto kind = next_part(rest, ':');
  bool known = false;
  for (const auto& [name, value] : kKinds) {
    if (name != kind) continue;
    result.kind = value;
    known = true;
  }
  if (!known) {
    return std::unexpected(
        bad_rule(rule, kind, "is no operation: read, write, write_zeroes, discard, flush, fua or any"));
  }
  bool counted = false;
  const auto repeated = [&rule](std::string_view item) {
    return std::unexpected(bad_rule(rule, item, "says again what the rule has said already"));
  };
  while (!rest.empty()) {
    const auto item = next_part(rest, ':');
    if (item == "always") {
      if (result.always) return repeated(item);
      result.always = true;
    } else if (item == "hold") {
      if (result.hold) return repeated(item);
      result.hold = true;
    } else if (item == "after") {
      if (result.after) return repeated(item);
      result.after = true;
    } else if (item.starts_with('@')) {
      if (result.range) return repeated(item);
      result.range = range_of(item.substr(1));
      if (!result.range) return std::unexpected(bad_rule(rule, item, "is no range: write @OFFSET+LENGTH"));
    } else if (item.starts_with("delay=")) {
      if (result.delay.count() != 0) return repeated(item);
      const auto delay = parse_number(item.substr(6));
      if (!delay || *delay > kLongestDelay) {
        return std::unexpected(bad_rule(rule, item, "is no delay: write delay=MS, at most an hour"));
      }
      result.delay = std::chrono::milliseconds(*delay);
    } else if (const auto number = errno_of(item)) {
      if (result.number != 0) return repeated(item);
      result.number = *number;
    } else if (const auto count = parse_number(item); count && !counted && *count > 0) {
      result.from = *count;
      counted = true;
    } else if (count && counted && *count > 0 && *count <= kLargestErrno) {
      if (result.number != 0) return repeated(item);
      result.number = static_cast<int>(*count);
    } else {
      return std::unexpected(bad_rule(
          rule, item,
          "is not understood: a count from 1, @OFFSET+LENGTH, always, an errno, delay=MS, hold or after"));
    }
  }
  if (result.number == 0 && result.delay.count() == 0 && !result.hold) {
    return std::unexpected(bad_rule(rule, rule, "does nothing: add an errno as EIO, delay=MS or hold"));
  }
  if (result.range && result.kind == FaultKind::Flush) {
    return std::unexpected(bad_rule(rule, rule, "can never match: a flush has no range"));
  }
  return result;
}

}  // namespace

Result<std::vector<FaultRule>> parse_fault_rules(std::string_view text) {
  std::vector<FaultRule> rules;
  do {
    auto rule = parse_rule(next_part(text, ';'));
    if (!rule) return std::unexpected(std::move(rule.error()));
    rules.push_back(*rule);
  } while (!text.empty());
  return rules;
}

}  // namespace spindle
