// The shell of `spindle io`: single commands against an open image, one a line, in the words of qemu-io.
//
// What a command finds goes to standard output, a failed request too, since that is where qemu-io puts it and
// scripts look; what is wrong with the command itself goes to standard error, as there. Offsets and lengths
// are bytes and need no alignment. A command that fails does not end the shell, but the shell remembers.
//
// Commands run through the Disk, as a guest's requests do: the cache mode decides what a write waits for.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "block/disk.h"
#include "image/io_arguments.h"

namespace spindle::image {

class IoShell {
 public:
  using Print = std::function<void(std::string_view)>;

  /// `disk` may be null: then commands that need an image say so. `reactor` is its reactor, and runs on the
  /// calling thread.
  IoShell(Reactor& reactor, Disk* disk, Print print, Print complain)
      : reactor_(reactor), disk_(disk), print_(std::move(print)), complain_(std::move(complain)) {}

  enum class Outcome : uint8_t { Done, Failed, Quit };
  /// Carries out one line. An empty one is done.
  Outcome run(std::string_view line);
  /// Whether any line failed so far.
  bool failed() const { return failed_; }

 private:
  struct Command;
  static const std::vector<Command>& commands();
  static const Command* find(std::string_view name);

  // io_commands.cc. False if it failed; then it has said why.
  bool read(const IoArguments& arguments);
  bool write(const IoArguments& arguments);
  bool discard(const IoArguments& arguments);
  bool flush(const IoArguments& arguments);
  bool length(const IoArguments& arguments);
  bool map(const IoArguments& arguments);
  bool alloc(const IoArguments& arguments);
  bool info(const IoArguments& arguments);
  bool help(const IoArguments& arguments);

  struct Range;
  bool parse_range(const char* command, const IoArguments& arguments, Range& range);
  bool fill(const IoArguments& arguments, std::span<std::byte> memory);
  bool verify(const IoArguments& arguments, const Range& range, std::span<const std::byte> memory,
              bool& matches);
  void dump(uint64_t offset, std::span<const std::byte> memory);
  bool say(std::string_view line);    // and false
  bool blame(std::string_view line);  // the same, of the command itself
  bool fail(const char* command, const Error& error);
  struct Clock;
  void report(const char* done, const IoArguments& arguments, const Range& range, const Clock& clock);

  Reactor& reactor_;
  Disk* disk_;
  Print print_;
  Print complain_;
  bool failed_ = false;
};

}  // namespace spindle::image
