// FormatRegistry: which image formats there are, by name. Formats register themselves
// (formats/register_formats), block/ knows none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "block/io/task.h"
#include "block/node.h"
#include "block/result.h"

namespace spindle {

/// The options of a disk's description that its format asked for, as they were typed.
using FormatOptions = std::map<std::string, std::string>;

/// A file that an image names in its header, as it stands there.
struct OtherFile {
  std::string name;
  std::optional<std::string> format = std::nullopt;  ///< what the image says it is
};

/// Opens the files that an image names beside its own. Who opens the graph decides whether it may, how a
/// relative name is meant and how deep a chain may be; a format only asks.
class OtherFiles {
 public:
  virtual ~OtherFiles() = default;
  /// The image below an overlay, read-only, through a whole graph of its own. Null if the user asked for the
  /// overlay alone.
  virtual Task<Result<std::shared_ptr<Node>>> open_backing(OtherFile file) = 0;
  /// The file that holds an image's data, raw, writable as the image is.
  virtual Task<Result<std::shared_ptr<Node>>> open_data_file(OtherFile file) = 0;
};

/// What Format::open is told.
struct OpenOptions {
  FormatOptions options = {};
  /// Null: an image that needs another file cannot be opened. Lives until open has returned.
  OtherFiles* others = nullptr;
};

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
  uint64_t compressed_clusters = 0;
  uint64_t image_end_offset = 0;  ///< bytes of the file that are in use
  /// One line each for a finding, at most kMaxMessages and then one that says how many more.
  std::vector<std::string> messages = {};
  static constexpr std::size_t kMaxMessages = 100;
};

struct CreateOptions {
  uint64_t size = 0;                                ///< bytes the guest will see
  std::optional<OtherFile> backing = std::nullopt;  ///< what the header is to name; not opened
  FormatOptions options = {};
  /// Makes the file that is to hold the image's data, or empties it, and opens it; the format closes it.
  /// `name` is as it was typed. Null: no such images can be made.
  std::function<Task<Result<std::shared_ptr<Node>>>(std::string name)> make_data_file = {};
};

/// What `-o help` says of an option of create.
struct CreateOptionHelp {
  std::string key;
  std::string value;  ///< what it takes: "<size>", "<bool (on/off)>"
  std::string help;
  std::string initial = {};  ///< its value if none is given; of a switch, off if this is empty
};

/// A fact that only images of one format have, by the name that qemu-img gives it: "refcount bits".
struct FormatFact {
  std::string name;
  std::variant<bool, uint64_t, std::string> value;
};

/// A snapshot inside an image.
struct ImageSnapshot {
  std::string id;
  std::string name;
  uint64_t vm_state_size = 0;
  uint64_t disk_size = 0;
  uint32_t date_seconds = 0;  ///< since 1970
  uint32_t date_nanoseconds = 0;
  uint64_t vm_clock_nanoseconds = 0;
  std::optional<uint64_t> instruction_count = std::nullopt;
};

/// A dirty bitmap inside an image.
struct ImageBitmap {
  std::string name;
  uint64_t granularity = 0;  ///< bytes
  bool in_use = false;       ///< was not saved when the image was last closed: what it says is not to be used
  bool enabled = false;      ///< it goes on recording
};

/// What an image says of itself. Found without opening any other file.
struct ImageDescription {
  uint64_t virtual_size = 0;
  uint32_t cluster_size = 0;
  bool dirty = false;    ///< it was not closed in order, and its counts are not to be trusted
  bool corrupt = false;  ///< it was found to contradict itself, and may only be read
  bool encrypted = false;
  std::optional<OtherFile> backing = std::nullopt;
  std::optional<OtherFile> data_file = std::nullopt;
  std::vector<FormatFact> facts = {};
  std::vector<ImageSnapshot> snapshots = {};
  std::vector<ImageBitmap> bitmaps = {};
};

/// What an image would need, in bytes of its file.
struct Measure {
  uint64_t required = 0;         ///< for what there is to store
  uint64_t fully_allocated = 0;  ///< if every byte of the disk were in use
  std::optional<uint64_t> bitmaps = std::nullopt;
};

/// What can be done to a snapshot, by its id or else its name.
enum class SnapshotAction : uint8_t { Create, Apply, Delete };

/// What can be done to a dirty bitmap.
enum class BitmapAction : uint8_t { Add, Remove, Clear, Enable, Disable };

struct Format {
  std::string name;
  std::vector<std::string> option_keys = {};  ///< what it accepts beyond the options every disk has
  bool grows = false;  ///< it resizes its file while it runs, so the file is locked for that too
  /// Opens the image on `child`. On an error the caller closes the child.
  std::function<Task<Result<std::shared_ptr<Node>>>(std::shared_ptr<Node> child, OpenOptions options)> open;

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
  /// What the image says of itself. None: size and cluster size of the opened node are all there is to say.
  std::function<Task<Result<ImageDescription>>(std::shared_ptr<Node> file)> describe = {};
  /// Makes, applies or deletes a snapshot. Safe at any crash point, durable when it returns. Of `snapshot`,
  /// Create takes all but the id, which it chooses; the others take what names it: its id, or else its name.
  std::function<Task<Result<>>(std::shared_ptr<Node> file, SnapshotAction action, ImageSnapshot snapshot)>
      snapshot = {};
  /// The header names another backing file, or none; the guest's view changes if their contents differ.
  std::function<Task<Result<>>(std::shared_ptr<Node> file, std::optional<OtherFile> backing)> set_backing =
      {};
  /// Drops all that is allocated, so that the backing file shows, or zeroes.
  std::function<Task<Result<>>(std::shared_ptr<Node> file)> make_empty = {};
  /// Changes options that create took. What cannot be changed is NotSupported, by name.
  std::function<Task<Result<>>(std::shared_ptr<Node> file, FormatOptions options)> amend = {};
  /// What create with these options would need for a disk of which `data_clusters(cluster_size)` clusters are
  /// in use.
  std::function<Result<Measure>(const CreateOptions& options,
                                std::function<uint64_t(uint64_t)> data_clusters)>
      measure = {};
  /// Works on the dirty bitmap `name`. `granularity` is for Add, 0: 64 KiB.
  std::function<Task<Result<>>(std::shared_ptr<Node> file, BitmapAction action, std::string name,
                               uint64_t granularity)>
      bitmap = {};
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
