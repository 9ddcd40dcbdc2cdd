// The files that an image names beside its own: what a name means, who may be named, and how a chain of
// images is opened.
//
// An image is not to be trusted: whoever wrote it could name any file of the host. So a disk says where the
// files may lie (other-files=). If it says nothing, backing files are opened wherever they lie, as QEMU does,
// but only read; a data file would be written to, so one that the image names is refused until the user says
// so, or names it with data-file=.
//
// A backing file's format is what the header says or the user gave. Without either it is opened only if it
// is taken for raw when probed: a file that was a guest's raw disk could begin like any format, and would
// then name further files itself. So the probe can refuse, but never choose.
//
// Each image of a chain is a graph of its own, with the cache mode, the locking and the dropping of the page
// cache that the disk has, and without its faults, limits and recording. Backing files are read-only, so
// their locks are shared with other readers.
//
// Threading: the reactor's thread; opening and probing block.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "block/disk_spec.h"
#include "block/format_registry.h"
#include "block/io/reactor.h"

namespace spindle {

/// The most images that may lie below one another.
inline constexpr unsigned kLongestChain = 200;

/// A name as an image has it, made into what the user could have typed.
struct MeantFile {
  std::string file;  ///< for parse_file_name(): "/images/base.img", "file:a:b"
  std::optional<std::string> format = std::nullopt;  ///< that the name itself says, as json:{...} can
};

/// What `name` in the image `overlay` (a DiskSpec's file) means. A name without a protocol and not absolute
/// is meant from the overlay's directory; one with `file:` or `json:` as it stands, from the working
/// directory, as QEMU has it. Of json:{...} the driver and the file's name are understood. Invalid or
/// NotSupported names what is not.
Result<MeantFile> meant_file(const std::string& overlay, const std::string& name);

/// The format that claims the file's first bytes, else "raw". Of two that do, the first in the registry's
/// order.
Result<std::string> probe_file(const std::string& path, const FormatRegistry& registry);

/// An image being opened and those above it. Lives on the stack of who opens.
struct ChainLink {
  const ChainLink* above = nullptr;  ///< null: the disk's own image
  std::string name;
  bool is_file = false;  ///< the next two are valid
  dev_t device = 0;
  ino_t inode = 0;
  unsigned depth = 0;  ///< of the disk's own image: 0
};

/// The link of `file`, or an error that names the chain if it is in it already or the chain is too long.
Result<ChainLink> next_link(const std::string& file, const ChainLink* above);

class ChainFiles final : public OtherFiles {
 public:
  /// Opens one more graph, below `above`; and a file's protocol node for data.
  using OpenGraph =
      std::function<Task<Result<std::shared_ptr<Node>>>(const DiskSpec& spec, const ChainLink* above)>;
  using OpenData = std::function<Result<std::shared_ptr<Node>>(const DiskSpec& spec)>;

  /// `spec` and `link` are of the image that names the files. All references outlive this.
  ChainFiles(const DiskSpec& spec, const ChainLink& link, const FormatRegistry& registry, OpenGraph graph,
             OpenData data)
      : spec_(spec),
        link_(link),
        registry_(registry),
        open_graph_(std::move(graph)),
        open_data_(std::move(data)) {}

  Task<Result<std::shared_ptr<Node>>> open_backing(OtherFile file) override;
  Task<Result<std::shared_ptr<Node>>> open_data_file(OtherFile file) override;

 private:
  Result<> may_open(const std::string& file, const char* what, FilesFrom where) const;
  Result<std::string> backing_format(const OtherFile& file, const MeantFile& meant) const;
  DiskSpec spec_below(std::string file, std::string format) const;

  const DiskSpec& spec_;
  const ChainLink& link_;
  const FormatRegistry& registry_;
  OpenGraph open_graph_;
  OpenData open_data_;
};

}  // namespace spindle
