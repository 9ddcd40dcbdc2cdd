// Check: holds an image's counts and flags against its references, and counts what is wrong as qemu-img check
// does.
//
// Errors are checks that could not be carried out: a file that cannot be read, a header that is none. Tables
// that lie nowhere are findings.
//
// Memory: what References needs, whatever the image says.
#pragma once

#include <memory>

#include "formats/qcow2/mutation.h"
#include "formats/qcow2/references.h"

namespace spindle::qcow2 {

/// An image as one look found it.
class Survey {
 public:
  /// Reads header, tables and counts, after a barrier: what another process wrote and was killed before it
  /// flushed may be gone after a crash, and may not be built upon. None if the file is read-only.
  static Task<Result<std::unique_ptr<Survey>>> make(Node& file);

  Header header;
  RefcountTable table;
  CheckReport report;
  Teller teller{report};
  References references;
  /// The refcount blocks have to be made anew: one is missing, lies nowhere, or has a cluster that others
  /// use.
  bool needs_blocks = false;
  /// A cluster has more users than a count can say.
  bool beyond_counts = false;

  Survey(Node& file, Header h, RefcountTable t)
      : header(std::move(h)), table(std::move(t)), references(file, header, table, report, teller) {}
  Survey(const Survey&) = delete;
  Survey& operator=(const Survey&) = delete;

 private:
  Task<Result<>> compare();
  Task<Result<>> compare_window(uint64_t window);
};

/// Format::check.
Task<Result<CheckReport>> check(Node& file, Repair repair, ImageMutation mutation = ImageMutation::None);

}  // namespace spindle::qcow2
