// Opening an image as the tools do: by name, with the format given or found out, or by a list of options
// (--image-opts); through the same graph of nodes a guest's disk has, so that every option of a disk works
// here too.
//
// A tool may find out the format from the file's first bytes: whoever calls it sees what it took the image
// for, and it runs once. A guest's disk is never probed (docs/format-raw.md). Since raw is what is left when
// nothing matches, writing to an image that was only guessed to be raw gets a note.
//
// Locks are those of a guest's disk, so that a tool and a machine keep out of each other's way. Without
// `drop_cache` the page cache is read as it is, as QEMU's tools do; a tool that judges or changes an image
// drops it first, for the reason given in docs/disk-options.md ("After a failed flush").
//
// Threading: the reactor's thread; opening blocks.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "block/disk.h"
#include "block/disk_spec.h"
#include "block/format_registry.h"
#include "image/output.h"

namespace spindle::image {

/// What tools work with. Outlives all that is opened.
struct Workshop {
  Reactor& reactor;
  const FormatRegistry& formats;
  Notes& notes;
};

/// An image as the user named it.
struct ImageName {
  std::string text;                                  ///< a file's name, or with `options` a list
  std::optional<std::string> format = std::nullopt;  ///< -f
  bool options = false;                              ///< --image-opts: `text` is key=value,...
};

struct OpenMode {
  bool write = false;
  std::optional<CacheMode> cache = std::nullopt;  ///< else what the list of options says, else writeback
  bool force_share = false;                       ///< -U: no locks, for reading only
  bool unmap = true;                              ///< discards reach the file
  bool drop_cache = false;
};

/// The description of the image `name`, its format found out if nobody said it. Invalid with a line that
/// says what is wrong with the options; or the error of reading the file's head.
Result<DiskSpec> describe_image(const Workshop& shop, const ImageName& name, const OpenMode& mode);

/// The format that claims the file's head, else "raw". A list, since a file is only of one format but two
/// may be tried: the first in the registry's order wins.
Result<std::string> probe_format(const Workshop& shop, const std::string& file);

/// Opens what `spec` describes as a disk. Its close() must be awaited before it goes away.
Task<Result<std::unique_ptr<Disk>>> open_disk(const Workshop& shop, DiskSpec spec);

/// describe_image() and open_disk() in one.
Task<Result<std::unique_ptr<Disk>>> open_image(const Workshop& shop, ImageName name, OpenMode mode);

/// Opens the file alone, for what formats do with whole images. NotSupported for what is no file.
Result<std::shared_ptr<Node>> open_file(const Workshop& shop, const DiskSpec& spec);

/// -t and -T. Invalid with `option` in its line.
Result<CacheMode> cache_mode_of(const std::string& option, const std::string& value);

}  // namespace spindle::image
