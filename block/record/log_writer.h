// LogWriter: puts entries into a log file (record_log.h), through a file node on the disk's own reactor.
//
// Memory: what an entry carries is the caller's; completions gather until the next entry that waits, 48 bytes
// each. The file grows in steps, ahead of what is written, so a log whose writer was killed ends in zeroes.
//
// After an error nothing more is written, since what follows a gap could not be read: every later append()
// fails with that error too.
//
// Threading: the reactor only.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "block/filters/turn.h"
#include "block/node.h"
#include "block/record/record_log.h"

namespace spindle::record {

class LogWriter {
 public:
  /// Makes the file, or replaces one that is empty or a log; Invalid for any other. Locks it. Blocks.
  static Task<Result<std::unique_ptr<LogWriter>>> create(Reactor& reactor, std::string path, Header header);

  /// Logs `entry`, whose content (Entry::content() bytes) is `content`. Its place in the order of events is
  /// that of the call; it is in the file, for the page cache to write, when this returns.
  Task<Result<>> append(Entry entry, std::span<const std::byte> content = {});
  /// The same without waiting: in the file with the next append().
  void note(const Entry& entry);
  /// Once, after the last of these. With the file closed, an error of any of them is told here too.
  Task<Result<>> close();

  uint64_t bytes() const { return end_; }

 private:
  LogWriter(std::shared_ptr<Node> file, std::string path);
  Task<Result<>> write(std::vector<iovec> parts, uint64_t bytes);
  Task<Result<>> grow(uint64_t needed);
  Result<> failed(const Error& error);
  Entry timed(Entry entry) const;

  std::shared_ptr<Node> file_;
  std::string path_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::vector<std::byte> noted_;
  uint64_t end_ = 0;  // of what has its place
  Turns growing_;
  std::optional<Error> failure_;
};

}  // namespace spindle::record
