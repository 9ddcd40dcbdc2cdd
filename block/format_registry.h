// FormatRegistry: which image formats there are, by name. Formats register themselves
// (formats/register_formats), block/ knows none.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "block/io/task.h"
#include "block/node.h"
#include "block/result.h"

namespace spindle {

/// The options of a disk's description that its format asked for, as they were typed.
using FormatOptions = std::map<std::string, std::string>;

struct Format {
  std::string name;
  std::vector<std::string> option_keys = {};  ///< what it accepts beyond the options every disk has
  bool grows = false;  ///< it resizes its file while it runs, so the file is locked for that too
  /// Opens the image on `child`. On an error the caller closes the child.
  std::function<Task<Result<std::shared_ptr<Node>>>(std::shared_ptr<Node> child, FormatOptions options)> open;
};

class FormatRegistry {
 public:
  void add(Format format) { formats_.insert_or_assign(format.name, std::move(format)); }
  /// Null if there is none of that name.
  const Format* find(std::string_view name) const {
    const auto found = formats_.find(name);
    return found == formats_.end() ? nullptr : &found->second;
  }
  /// "raw, qcow2": for messages.
  std::string names() const {
    std::string list;
    for (const auto& [name, format] : formats_) list += (list.empty() ? "" : ", ") + name;
    return list;
  }

 private:
  std::map<std::string, Format, std::less<>> formats_;
};

/// The error for an option with a value it cannot have: `key=value` and what is allowed, in one line.
Error bad_option(std::string_view key, std::string_view value, std::string_view allowed);

}  // namespace spindle
