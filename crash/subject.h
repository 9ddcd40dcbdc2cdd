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
  /// D8 is not promised (metadata-flush=none): said in results, changes no verdict.
  bool promises_nothing = false;
};

/// A format of the registry. Options that it does not know for disks are for create. Invalid if it can
/// neither; the message names the option.
Result<Subject> subject_of(const Format& format, const FormatOptions& options);

}  // namespace spindle::crash
