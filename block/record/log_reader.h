// LogReader: reads a log (record_log.h) entry by entry. What is read may be anything: every length is checked
// against the file before memory is taken for it.
//
// Blocks: for tools, not for a reactor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "block/record/record_log.h"
#include "block/result.h"

namespace spindle::record {

/// How a log ended.
enum class LogEnd : uint8_t {
  Closed,  ///< in order
  Cut,     ///< without: its writer was killed, or the file was damaged there
};

class LogReader {
 public:
  /// NotFound and others; Invalid if it is no log of a version that is known.
  static Result<std::unique_ptr<LogReader>> open(const std::string& path);
  ~LogReader();
  LogReader(const LogReader&) = delete;
  LogReader& operator=(const LogReader&) = delete;

  const std::string& path() const { return path_; }
  const Header& header() const { return header_; }
  /// The next entry, and where its content stands in the file (content()); false at the end. An error only if
  /// the host could not read.
  Result<bool> next(Entry& entry);
  /// Once next() has said false.
  LogEnd end() const { return end_; }
  /// Of the last entry: bytes of the file that were understood so far, and where its content begins.
  uint64_t position() const { return at_; }
  uint64_t content_at() const { return content_at_; }
  uint64_t file_bytes() const { return size_; }
  /// `bytes.size()` bytes of content at `at`, which next() has checked.
  Result<> read(uint64_t at, std::span<std::byte> bytes) const;

 private:
  LogReader(std::string path, int fd, uint64_t size);
  Result<bool> content_fits(const EntryBytes& bytes, const Decoded& decoded) const;

  std::string path_;
  int fd_;
  uint64_t size_ = 0;
  uint64_t at_ = 0;
  uint64_t content_at_ = 0;
  Header header_;
  LogEnd end_ = LogEnd::Cut;
};

}  // namespace spindle::record
