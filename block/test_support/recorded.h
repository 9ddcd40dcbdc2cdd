// A whole log in memory, and what it says the file holds.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "block/record/log_reader.h"

namespace spindle::test {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

struct Recorded {
  record::Header header;
  std::vector<std::pair<record::Entry, Bytes>> entries;
  record::LogEnd end = record::LogEnd::Cut;
};

inline Recorded read_log(const std::string& path) {
  auto reader = record::LogReader::open(path);
  REQUIRE_MESSAGE(reader.has_value(), (reader ? "" : reader.error()->message()));
  Recorded recorded{.header = (*reader)->header(), .entries = {}};
  for (record::Entry entry;;) {
    auto more = (*reader)->next(entry);
    REQUIRE(more.has_value());
    if (!*more) break;
    Bytes content(entry.content());
    REQUIRE((*reader)->read((*reader)->content_at(), content).has_value());
    recorded.entries.emplace_back(entry, std::move(content));
  }
  recorded.end = (*reader)->end();
  return recorded;
}

struct Rebuilt {
  Bytes bytes;
  std::vector<bool> loose;  ///< discarded: as in `bytes`, or zero
};

/// The file after all operations that succeeded, in the order of their submission. For logs in which no two
/// that overlap were in flight together.
inline Rebuilt rebuild(const Recorded& recorded) {
  std::map<uint64_t, int> outcome;
  for (const auto& [entry, content] : recorded.entries) {
    if (entry.type == record::EntryType::Complete) outcome[entry.id] = entry.error;
  }
  Rebuilt file{Bytes(recorded.header.size), std::vector<bool>(recorded.header.size)};
  for (const auto& [entry, content] : recorded.entries) {
    const bool base = entry.type == record::EntryType::Base;
    if (!base &&
        (entry.type != record::EntryType::Submit || !outcome.contains(entry.id) || outcome[entry.id] != 0))
      continue;
    const auto at = static_cast<std::ptrdiff_t>(entry.offset);
    const auto length = static_cast<std::ptrdiff_t>(entry.length);
    const bool zeroes = entry.operation == record::Operation::WriteZeroes;
    if (base || entry.operation == record::Operation::Write || zeroes) {
      REQUIRE(entry.offset + entry.length <= file.bytes.size());
      if (zeroes) {
        std::fill_n(file.bytes.begin() + at, length, std::byte{});
      } else {
        std::ranges::copy(content, file.bytes.begin() + at);
      }
      std::fill_n(file.loose.begin() + at, length, false);
    } else if (entry.operation == record::Operation::Discard) {
      std::fill_n(file.loose.begin() + at, length, true);
    } else if (entry.operation == record::Operation::Resize) {
      CHECK(entry.offset == file.bytes.size());
      file.bytes.resize(entry.length);
      file.loose.resize(entry.length);
    }
  }
  return file;
}

}  // namespace spindle::test
