#include "block/trace/chrome_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <ranges>
#include <string_view>

namespace spindle::trace {
namespace {

constexpr unsigned kMachine = 1;

unsigned process_of(Id request) {
  return kMachine + static_cast<unsigned>(request >> kTrackShift);
}

// Bytes that are no ASCII are shown as question marks: names are short, and need not be UTF-8.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char character : text) {
    if (character == '"' || character == '\\') result += '\\';
    if (static_cast<unsigned char>(character) < 0x20) {
      result += fmt::format("\\u{:04x}", static_cast<unsigned char>(character));
    } else {
      result += static_cast<unsigned char>(character) < 0x7f ? character : '?';
    }
  }
  return result;
}

}  // namespace

ChromeJson::ChromeJson(uint64_t start, int64_t unix_seconds) : start_(start), text_(1, '[') {
  metadata("process_name", kMachine, 0, "spindle");
  announced_.emplace(kMachine, 0);
  begin_event('i', kMachine, 0, "trace begins", start);
  fmt::format_to(std::back_inserter(text_), ",\"s\":\"g\",\"args\":{{\"unix_time\":{}}}}}", unix_seconds);
}

// Everything up to the arguments; the caller closes the object.
void ChromeJson::begin_event(char phase, unsigned process, unsigned thread, const char* name, uint64_t time) {
  const uint64_t since = time > start_ ? time - start_ : 0;
  fmt::format_to(std::back_inserter(text_),
                 "{}\n{{\"ph\":\"{}\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{}.{:03}",
                 events_++ == 0 ? "" : ",", phase, name, process, thread, since / 1000, since % 1000);
}

void ChromeJson::begin_span_event(char phase, Id request, unsigned thread, const char* name, uint64_t time) {
  begin_event(phase, process_of(request), thread, name, time);
  fmt::format_to(std::back_inserter(text_), ",\"cat\":\"request\",\"id\":\"{:#x}\",\"args\":{{", request);
}

void ChromeJson::metadata(const char* name, unsigned process, unsigned thread, const std::string& value) {
  fmt::format_to(std::back_inserter(text_),
                 "{}\n{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":\"{}\"}}}}",
                 events_++ == 0 ? "" : ",", name, process, thread, escaped(value));
}

void ChromeJson::announce(unsigned process, const Ring& ring) {
  if (!announced_.emplace(process, ring.number()).second) return;
  if (announced_.emplace(process, 0).second)
    metadata("process_name", process, 0, track_name(static_cast<uint16_t>(process - kMachine)));
  metadata("thread_name", process, ring.number(), ring.name());
}

void ChromeJson::add(const Ring& ring, const Record& record) {
  const unsigned process = process_of(record.request);
  if (record.kind == Record::Kind::End) {
    end_span(record.request, ring.number(), record.name, record.time, record.word, record.why);
    return;
  }
  announce(process, ring);
  if (record.kind == Record::Kind::Mark) {
    begin_event('i', process, ring.number(), record.name, record.time);
    fmt::format_to(std::back_inserter(text_), ",\"s\":\"{}\"", process == kMachine ? 'g' : 'p');
    if (record.word)
      fmt::format_to(std::back_inserter(text_), ",\"args\":{{\"reason\":\"{}\"}}", record.word);
    text_ += '}';
    return;
  }
  const auto found = open_.find(record.request);
  if (found == open_.end() && open_.size() >= kMostOpen) {
    ++refused_;
    return;
  }
  Open& open = found == open_.end() ? open_[record.request] : found->second;
  open.names.push_back(record.name);
  open.thread = ring.number();
  begin_span_event('b', record.request, ring.number(), record.name, record.time);
  const char* comma = "";
  if (record.length != 0) {
    fmt::format_to(std::back_inserter(text_), "\"offset\":{},\"length\":{}", record.offset, record.length);
    comma = ",";
  }
  if (record.word) fmt::format_to(std::back_inserter(text_), "{}\"reason\":\"{}\"", comma, record.word);
  text_ += "}}";
}

void ChromeJson::end_span(Id request, unsigned thread, const char* name, uint64_t time, const char* outcome,
                          const char* why) {
  const auto found = open_.find(request);
  if (found == open_.end()) return;
  auto& names = found->second.names;
  const auto same = [name](const char* other) { return std::strcmp(name, other) == 0; };
  if (std::ranges::none_of(names, same)) return;
  const auto write = [&](const char* what, const char* how, const char* reason) {
    begin_span_event('e', request, thread, what, time);
    fmt::format_to(std::back_inserter(text_), "\"outcome\":\"{}\"", how);
    if (reason) fmt::format_to(std::back_inserter(text_), ",\"why\":\"{}\"", reason);
    text_ += "}}";
  };
  for (bool reached = false; !reached; names.pop_back()) {
    reached = same(names.back());
    if (reached) {
      write(name, outcome, why);
    } else {
      write(names.back(), "unknown", "its end was lost");
    }
  }
  if (names.empty()) open_.erase(found);
}

void ChromeJson::add_lost(const Ring& ring, uint64_t time, uint64_t count) {
  announce(kMachine, ring);
  begin_event('i', kMachine, ring.number(), "records lost", time);
  fmt::format_to(std::back_inserter(text_), ",\"s\":\"g\",\"args\":{{\"count\":{}}}}}", count);
}

void ChromeJson::finish(uint64_t time) {
  while (!open_.empty()) {
    const auto& [request, open] = *open_.begin();
    for (auto& name : open_.begin()->second.names | std::views::reverse) {
      begin_span_event('e', request, open.thread, name, time);
      text_ += "\"outcome\":\"in flight when the trace ended\"}}";
    }
    open_.erase(open_.begin());
  }
  text_ += "\n]\n";
}

}  // namespace spindle::trace
