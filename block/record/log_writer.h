// LogWriter: puts entries into a log file (record_log.h), one after the other, through a file node on the
// disk's own reactor.
//
// The file grows in steps, ahead of what is written, so a log whose writer was killed ends in zeroes.
//
// After an error nothing more is written, since what follows a gap could not be read: every later append()
// fails with that error too. It is no NoSpace, whatever the host said: that would be an error which passes.
//
// Threading: the reactor only.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "block/filters/turn.h"
#include "block/node.h"
#include "block/record/record_log.h"

namespace spindle::record {

class LogWriter {
 public:
  /// Makes the file, or replaces one that is empty or a log; Invalid for any other. Locks it. Blocks.
  static Task<Result<std::unique_ptr<LogWriter>>> create(Reactor& reactor, std::string path, Header header);
  /// The same over a node that is open and whose content is replaced. On an error it is closed.
  static Task<Result<std::unique_ptr<LogWriter>>> create(std::shared_ptr<Node> file, Header header);

  /// Logs `entry`, whose content (Entry::content() bytes) is `content`. Its place in the order of events is
  /// that of the call. When this returns, it and all before it are in the file, for the page cache to write.
  Task<Result<>> append(Entry entry, std::span<const std::byte> content = {});
  /// Ends the log in order, or with `in_order` false as if its writer had been killed, and closes the file.
  /// Once, after the last append(). An error of any of them is told here too.
  Task<Result<>> close(bool in_order = true);

 private:
  explicit LogWriter(std::shared_ptr<Node> file);
  Task<Result<>> write(std::span<const iovec> parts);
  Result<> failed(const Error& error);
  Entry timed(Entry entry) const;

  std::shared_ptr<Node> file_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  uint64_t end_ = 0;  // of what is written
  Turns writing_;
  std::optional<Error> failure_;
};

}  // namespace spindle::record
