// Subject: what is put to the test: something that makes a disk out of a file. A format of the registry with
// its options, a toy of a test, a format with an order broken on purpose: all come as subjects, and the
// explorer knows no others.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "block/format_registry.h"
#include "block/node.h"

namespace spindle::crash {

struct Subject {
  /// For people: "vdi metadata-flush=none".
  std::string name;
  /// Makes an empty image of what `file` is. Durable when it returns.
  std::function<Task<Result<>>(std::shared_ptr<Node> file, uint64_t size)> create;
  std::function<Task<Result<std::shared_ptr<Node>>>(std::shared_ptr<Node> file)> open;
  /// Empty: nothing but the content can be wrong.
  std::function<Task<Result<CheckReport>>(std::shared_ptr<Node> file, Repair repair)> check = {};
  std::function<Task<Result<CheckReport>>(std::shared_ptr<Node> file)> compact = {};
  /// The disk is as large as the file (raw). Where a growth is not durable and writes beyond the old end have
  /// reached the medium, the file ends where they do, so any size between those that are legal is.
  bool sized_by_file = false;
  /// D8 is not promised (metadata-flush=none): said in results, changes no verdict.
  bool promises_nothing = false;
};

/// A format of the registry. Options that it does not know for disks are for create. Invalid if it can
/// neither; the message names the option.
Result<Subject> subject_of(const Format& format, const FormatOptions& options);

/// `options`, and the smallest allocation unit that the format can be created with: a state of a small image
/// is judged in a hundredth of the time. Explicit ones stay.
FormatOptions small_blocks(const Format& format, FormatOptions options);

}  // namespace spindle::crash
