#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <system_error>

#include "image/aligned_buffer.h"
#include "image/io_command.h"
#include "image/size_text.h"

namespace spindle::image {
namespace {

constexpr uint64_t kLargestRequest = 2147483136;  // QEMU's
constexpr std::byte kFill{0xcd};
constexpr std::byte kReadFill{0xab};  // what a read that brought nothing would show
constexpr uint64_t kLine = 16;        // bytes of a dump's line

}  // namespace

struct IoShell::Range {
  uint64_t offset = 0;
  uint64_t length = 0;
};

struct IoShell::Clock {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point end = start;
  void stop() { end = std::chrono::steady_clock::now(); }
};

bool IoShell::fail(const char* command, const Error& error) {
  const int number = error.number != 0 ? error.number : EIO;
  return say(fmt::format("{} failed: {}", command, std::generic_category().message(number)));
}

bool IoShell::parse_range(const char* command, const IoArguments& arguments, Range& range) {
  const auto offset = parse_io_size(arguments.rest[0]);
  if (!offset) return say(offset.error());
  const auto length = parse_io_size(arguments.rest[1]);
  if (!length) return say(length.error());
  range = {.offset = *offset, .length = *length};
  // What names no memory may be of any length.
  const bool has_memory = std::string_view(command) != "discard" && !arguments.has('z');
  if (has_memory && *length > kLargestRequest)
    return say(fmt::format("length cannot exceed {}{}, given {}", kLargestRequest,
                           std::string_view(command) == "write" ? " without -n" : "", arguments.rest[1]));
  return true;
}

// "wrote 65536/65536 bytes at offset 0", and how fast.
void IoShell::report(const char* done, const IoArguments& arguments, const Range& range, const Clock& clock) {
  if (arguments.has('q')) return;
  const auto elapsed =
      std::max<std::chrono::duration<double>>(clock.end - clock.start, std::chrono::nanoseconds(1));
  const double seconds = elapsed.count();
  const auto hundredths = static_cast<uint64_t>(seconds * 100);
  const uint64_t minutes = hundredths / 6000;
  const std::string long_time = fmt::format("{}:{:02}:{:02}.{:02}", minutes / 60, minutes % 60,
                                            hundredths / 100 % 60, hundredths % 100);
  const double rate = static_cast<double>(range.length) / seconds;
  if (arguments.has('C')) {
    say(fmt::format("{},1,{},{:.3f},{:.3f}", range.length, long_time, rate, 1 / seconds));
    return;
  }
  const std::string time =
      minutes != 0 ? long_time : fmt::format("{:02}.{:02} sec", hundredths / 100, hundredths % 100);
  say(fmt::format("{} {}/{} bytes at offset {}", done, range.length, range.length, range.offset));
  say(fmt::format("{}, 1 ops; {} ({}/sec and {:.4f} ops/sec)",
                  quantity_text(static_cast<double>(range.length)), time, quantity_text(rate), 1 / seconds));
}

void IoShell::dump(uint64_t offset, std::span<const std::byte> memory) {
  std::string text;
  for (uint64_t line = 0; line < memory.size(); line += kLine) {
    text += fmt::format("{:08x}:  ", offset + line);
    const auto bytes = memory.subspan(line, std::min<uint64_t>(kLine, memory.size() - line));
    for (const std::byte byte : bytes) text += fmt::format("{:02x} ", static_cast<unsigned>(byte));
    text += ' ';
    for (const std::byte byte : bytes) {
      const auto c = static_cast<char>(byte);
      const bool letter = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      text += letter ? c : '.';
    }
    text += '\n';
  }
  print_(text);
}

// `matches` is left false if the pattern is not what was read, which is said but no reason to stop.
bool IoShell::verify(const IoArguments& arguments, const Range& range, std::span<const std::byte> memory,
                     bool& matches) {
  const std::string* pattern_text = arguments.value('P');
  if (!pattern_text) return true;
  const auto pattern = parse_io_pattern(*pattern_text);
  if (!pattern) return say(pattern.error());
  const std::string *start_text = arguments.value('s'), *length_text = arguments.value('l');
  const auto start = start_text ? parse_io_size(*start_text) : Parsed<uint64_t>(0);
  if (!start) return say(start.error());
  if (*start > range.length) return say("pattern verification range exceeds end of read data");
  const auto length = length_text ? parse_io_size(*length_text) : Parsed<uint64_t>(range.length - *start);
  if (!length) return say(length.error());
  if (*length > range.length - *start) return say("pattern verification range exceeds end of read data");
  const auto part = memory.empty() ? memory : memory.subspan(*start, *length);
  if (std::ranges::any_of(part, [&](std::byte byte) { return byte != std::byte{*pattern}; })) {
    matches = false;
    say(fmt::format("Pattern verification failed at offset {}, {} bytes", range.offset + *start, *length));
  }
  return true;
}

bool IoShell::read(const IoArguments& arguments) {
  Range range;
  if (!parse_range("read", arguments, range)) return false;
  if (!arguments.value('P') && (arguments.value('s') || arguments.value('l')))
    return say("-s and -l are only meaningful with -P");
  bool matches = true;
  if (!verify(arguments, range, {}, matches)) return false;  // what is wrong with the options
  auto buffer = AlignedBuffer::allocate(range.length);
  if (!buffer) return fail("read", *buffer.error());
  std::ranges::fill(buffer->bytes(), kReadFill);
  const iovec part = buffer->part(0, range.length);
  const Buffers buffers(std::span(&part, 1), range.length);
  Clock clock;
  const auto run = [&]() -> Task<Result<>> { co_return co_await disk_->read(range.offset, buffers); };
  const auto result = reactor_.wait(run());
  clock.stop();
  if (!result) return fail("read", *result.error());
  if (!verify(arguments, range, buffer->bytes(), matches)) return false;
  if (arguments.has('q')) return matches;
  if (arguments.has('v')) dump(range.offset, buffer->bytes());
  report("read", arguments, range, clock);
  return matches;
}

bool IoShell::fill(const IoArguments& arguments, std::span<std::byte> memory) {
  if (const std::string* text = arguments.value('P')) {
    const auto pattern = parse_io_pattern(*text);
    if (!pattern) return say(pattern.error());
    std::ranges::fill(memory, std::byte{*pattern});
    return true;
  }
  const std::string* name = arguments.value('s');
  if (!name) {
    std::ranges::fill(memory, kFill);
    return true;
  }
  errno = 0;
  std::ifstream file(*name, std::ios::binary);
  file.read(reinterpret_cast<char*>(memory.data()), static_cast<std::streamsize>(memory.size()));
  if (!file.is_open() || file.bad())
    return blame(fmt::format("{}: {}", *name, std::generic_category().message(errno != 0 ? errno : EIO)));
  const auto got = static_cast<std::size_t>(file.gcount());
  if (got == 0 && !memory.empty()) return blame(fmt::format("{}: file is empty", *name));
  // A file shorter than the range is written again and again.
  for (std::size_t i = got; i < memory.size(); ++i) memory[i] = memory[i - got];
  return true;
}

bool IoShell::write(const IoArguments& arguments) {
  if (arguments.has('z') + (arguments.value('P') != nullptr) + (arguments.value('s') != nullptr) > 1)
    return say("Only one of -z, -P, and -s can be specified at the same time");
  for (const char flag : {'n', 'u'}) {
    if (arguments.has(flag) && !arguments.has('z'))
      return say(fmt::format("-{} requires -z to be specified", flag));
  }
  Range range;
  if (!parse_range("write", arguments, range)) return false;
  AlignedBuffer memory;
  if (!arguments.has('z')) {
    auto buffer = AlignedBuffer::allocate(range.length);
    if (!buffer) return fail("write", *buffer.error());
    memory = std::move(*buffer);
    if (!fill(arguments, memory.bytes())) return false;
  }
  const iovec part = memory.part(0, memory.size());
  const Buffers buffers(std::span(&part, 1), memory.size());
  const ZeroFlags zero{
      .unmap = arguments.has('u'), .no_fallback = arguments.has('n'), .fua = arguments.has('f')};
  const WriteFlags flags{.fua = arguments.has('f')};
  const auto run = [&] {
    return arguments.has('z') ? disk_->write_zeroes(range.offset, range.length, zero)
                              : disk_->write(range.offset, buffers, flags);
  };
  Clock clock;
  const auto result = reactor_.wait(run());
  clock.stop();
  if (!result) return fail("write", *result.error());
  report("wrote", arguments, range, clock);
  return true;
}

bool IoShell::discard(const IoArguments& arguments) {
  Range range;
  if (!parse_range("discard", arguments, range)) return false;
  Clock clock;
  const auto result = reactor_.wait(disk_->discard(range.offset, range.length));
  clock.stop();
  if (!result) return fail("discard", *result.error());
  report("discard", arguments, range, clock);
  return true;
}

bool IoShell::flush(const IoArguments&) {
  const auto result = reactor_.wait(disk_->flush());
  return result ? true : fail("flush", *result.error());
}

bool IoShell::length(const IoArguments&) {
  say(quantity_text(static_cast<double>(disk_->size())));
  return true;
}

bool IoShell::info(const IoArguments&) {
  const NodeFacts& facts = disk_->node().facts();
  say(fmt::format("file name: {}\ncluster size: {}\nrequest alignment: {}", facts.name,
                  quantity_text(facts.cluster_size), quantity_text(facts.request_alignment)));
  return true;
}

bool IoShell::map(const IoArguments&) {
  Range run;
  bool data = false;
  const auto line = [&] {
    if (run.length == 0) return;
    say(fmt::format("{} ({:#x}) bytes {} allocated at offset {} ({:#x})",
                    quantity_text(static_cast<double>(run.length)), run.length, data ? "   " : "not",
                    quantity_text(static_cast<double>(run.offset)), run.offset));
  };
  for (uint64_t position = 0; position < disk_->size();) {
    const auto extent = reactor_.wait(disk_->node().map(position, disk_->size() - position));
    if (!extent) return fail("map", *extent.error());
    if (extent->length == 0) return fail("map", Error{});
    if (extent->data != data) {
      line();
      run = {.offset = position, .length = 0};
      data = extent->data;
    }
    run.length += extent->length;
    position += extent->length;
  }
  line();
  return true;
}

bool IoShell::alloc(const IoArguments& arguments) {
  const auto offset = parse_io_size(arguments.rest[0]);
  if (!offset) return say(offset.error());
  const auto count = arguments.rest.size() > 1 ? parse_io_size(arguments.rest[1]) : Parsed<uint64_t>(512);
  if (!count) return say(count.error());
  if (*offset > disk_->size() || *count > disk_->size() - *offset) return fail("alloc", Error{});
  uint64_t allocated = 0;
  for (uint64_t done = 0; done < *count;) {
    const auto extent = reactor_.wait(disk_->node().map(*offset + done, *count - done));
    if (!extent) return fail("alloc", *extent.error());
    if (extent->length == 0) return fail("alloc", Error{});
    if (extent->data) allocated += extent->length;
    done += extent->length;
  }
  say(fmt::format("{}/{} bytes allocated at offset {}", allocated, *count,
                  quantity_text(static_cast<double>(*offset))));
  return true;
}

}  // namespace spindle::image
