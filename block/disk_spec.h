// DiskSpec: a disk as the user described it, in QEMU's key=value lists. docs/disk-options.md is its table.
//
// The parser checks all that can be checked without touching the host: keys, values, and which go together.
// An error is one line that names the option, its value and what is allowed. The file's name may hold
// anything; a comma in it is written twice, as QEMU does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "block/cache_mode.h"
#include "block/disk.h"
#include "block/filters/fault_rule.h"
#include "block/filters/throttle_limits.h"
#include "block/format_registry.h"
#include "block/protocols/file_lock.h"

namespace spindle {

enum class DiskInterface : uint8_t { Virtio, Ide };

/// Where the files may lie that an image names (other_files.h).
enum class FilesFrom : uint8_t { Nowhere, SameDirectory, Anywhere };

struct DiskSpec {
  std::string file;  ///< empty: a CD-ROM drive without a medium
  std::string format = "raw";
  DiskInterface interface = DiskInterface::Virtio;
  CacheMode cache = CacheMode::Writeback;
  bool cdrom = false;  ///< media=cdrom: a CD-ROM drive and its medium, which is read-only
  bool read_only = false;
  bool discard = false;                           ///< discard=unmap
  ErrorPolicy read_errors = ErrorPolicy::Report;  ///< rerror=
  std::optional<ErrorPolicy> write_errors;        ///< werror=; what it is by default the monitor decides
  std::string serial;                             ///< empty: the device invents one
  std::string id;                                 ///< empty: the monitor invents one
  std::optional<unsigned> bus;                    ///< ide: channel 0 or 1
  std::optional<unsigned> unit;                   ///< ide: drive 0 or 1
  unsigned queues = 1;                            ///< virtio: 1 to 64
  bool packed = false;                            ///< virtio: offer packed rings
  LockPolicy locking = LockPolicy::Auto;
  bool flush_elision = true;
  bool drop_cache = true;     ///< start without what the page cache holds of the file (D6)
  bool whole_sectors = true;  ///< a guest's disk has them; a tool reads an image of any size
  std::vector<FaultRule> faults;
  bool volatile_filter = false;
  uint64_t volatile_max = 256ull << 20;
  std::string record;                 ///< record=: the log of what reaches the file; empty: none
  FormatOptions format_options;       ///< what the format declared and the user gave
  std::optional<uint64_t> null_size;  ///< size= of null-co://
  ThrottleLimits throttling;
  bool null_read_zeroes = true;  ///< read-zeroes= of null-co://
  bool copy_on_read = false;     ///< copy-on-read=: what is read from below goes into the overlay
  bool backing = true;           ///< backing=off: the overlay alone
  std::optional<std::string> backing_format;  ///< backing-format=, instead of what the image says
  std::string data_file;                      ///< data-file=, instead of what the image names
  std::optional<FilesFrom> other_files;       ///< other-files=; none: backing files anywhere, data as follows
  FilesFrom data_files = FilesFrom::Nowhere;  ///< what a tool, which runs once, may allow by itself
};

/// Parses "file=F,format=raw,...". The registry says which formats there are and which options they add.
Result<DiskSpec> parse_disk_spec(std::string_view text, const FormatRegistry& registry);

/// The drive as it is when its medium is taken out: what describes that goes with it (format and its options,
/// fault=, volatile=), how media are opened stays.
DiskSpec without_medium(DiskSpec drive);
/// The drive with this image for a medium. The name and the format are checked as parse_disk_spec() does.
Result<DiskSpec> with_medium(const DiskSpec& drive, const std::string& file, const std::string& format,
                             const FormatRegistry& registry);

/// What the guest-facing Disk needs of it.
DiskOptions disk_options(const DiskSpec& spec);

/// Splits a key=value list at its single commas, `,,` being a literal one. Parts without '=' have an empty
/// optional. Shared with the other command line options that are such lists.
struct KeyValue {
  std::string key;
  std::optional<std::string> value;
};
std::vector<KeyValue> split_key_values(std::string_view text);

}  // namespace spindle
