// FormatRegistry: which image formats there are, by name. Formats register themselves
// (formats/register_formats), block/ knows none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "block/io/task.h"
#include "block/node.h"
#include "block/result.h"

namespace spindle {

/// The options of a disk's description that its format asked for, as they were typed.
using FormatOptions = std::map<std::string, std::string>;

/// What a check may mend.
enum class Repair : uint8_t {
  None,
  Leaks,  ///< give back space that nothing points to
  All,    ///< and settle what contradicts itself, losing no more than cannot be told
};

/// What a check found and mended, counted as qemu-img check counts.
struct CheckReport {
  uint64_t corruptions = 0;  ///< left; not those mended
  uint64_t leaks = 0;        ///< left, in clusters
  uint64_t corruptions_fixed = 0;
  uint64_t leaks_fixed = 0;
  uint64_t total_clusters = 0;
  uint64_t allocated_clusters = 0;
  uint64_t fragmented_clusters = 0;
  uint64_t image_end_offset = 0;  ///< bytes of the file that are in use
  /// One line each for a finding, at most kMaxMessages and then one that says how many more.
  std::vector<std::string> messages = {};
  static constexpr std::size_t kMaxMessages = 100;
};

struct CreateOptions {
  uint64_t size = 0;  ///< bytes the guest will see
  FormatOptions options = {};
};

/// What `-o help` says of an option of create.
struct CreateOptionHelp {
  std::string key;
  std::string value;  ///< what it takes: "<size>", "<bool (on/off)>"
  std::string help;
  std::string initial = {};  ///< its value if none is given; of a switch, off if this is empty
};

struct Format {
  std::string name;
  std::vector<std::string> option_keys = {};  ///< what it accepts beyond the options every disk has
  bool grows = false;  ///< it resizes its file while it runs, so the file is locked for that too
  /// Opens the image on `child`. On an error the caller closes the child.
  std::function<Task<Result<std::shared_ptr<Node>>>(std::shared_ptr<Node> child, FormatOptions options)> open;

  // What tools do with whole images that no guest uses. Each works on the file; the caller closes it. A
  // format that lacks one cannot do it.
  /// Makes an image of what `file` is, replacing all it held. Durable when it returns.
  std::function<Task<Result<>>(std::shared_ptr<Node> file, CreateOptions options)> create = {};
  std::vector<CreateOptionHelp> create_options = {};
  /// An error is a check that could not be carried out; what is wrong with the image is in the report. Repair
  /// is safe at any crash point of its own, and durable when it returns.
  std::function<Task<Result<CheckReport>>(std::shared_ptr<Node> file, Repair repair)> check = {};
  /// Makes the file as small as its content allows, blocks of zeroes included. Like a repair in safety.
  std::function<Task<Result<CheckReport>>(std::shared_ptr<Node> file)> compact = {};
  /// Whether the file begins like one of these; `head` is its first bytes, 512 or all there are.
  std::function<bool(std::span<const std::byte> head)> probe = {};
};

class FormatRegistry {
 public:
  void add(Format format) { formats_.insert_or_assign(format.name, std::move(format)); }
  /// Null if there is none of that name.
  const Format* find(std::string_view name) const {
    const auto found = formats_.find(name);
    return found == formats_.end() ? nullptr : &found->second;
  }
  const std::map<std::string, Format, std::less<>>& all() const { return formats_; }
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
