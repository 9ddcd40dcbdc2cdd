#include "block/disk_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "block/parse.h"
#include "block/protocols/file_name.h"

namespace spindle {
namespace {

constexpr std::size_t kLongestSerial = 20;  // ATA and virtio alike
constexpr std::size_t kLongestId = 64;
constexpr uint64_t kSmallestVolatile = 64 << 10;
constexpr unsigned kMostQueues = 64;
constexpr std::string_view kThrottlingPrefix = "throttling.";

using Setter = std::function<Result<>(DiskSpec&, const std::string& value)>;

Result<> set_switch(bool& target, const char* key, const std::string& value) {
  const auto on = parse_on_off(value);
  if (!on) return std::unexpected(bad_option(key, value, "on or off"));
  target = *on;
  return {};
}

Result<> set_bounded(std::optional<unsigned>& target, const char* key, const std::string& value,
                     unsigned largest) {
  const auto number = parse_number(value);
  if (!number || *number > largest) {
    return std::unexpected(bad_option(key, value, fmt::format("0 to {}", largest)));
  }
  target = static_cast<unsigned>(*number);
  return {};
}

Result<> set_queues(DiskSpec& spec, const std::string& value) {
  const auto number = parse_number(value);
  if (!number || *number < 1 || *number > kMostQueues) {
    return std::unexpected(bad_option("queues", value, fmt::format("1 to {}", kMostQueues)));
  }
  spec.queues = static_cast<unsigned>(*number);
  return {};
}

// Serial numbers and ids end up in IDENTIFY data, sysfs and statistics: printable ASCII only.
Result<> set_name(std::string& target, const char* key, const std::string& value, std::size_t longest) {
  const bool printable = std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (value.empty() || value.size() > longest || !printable) {
    return std::unexpected(
        bad_option(key, value, fmt::format("1 to {} printable ASCII characters", longest)));
  }
  target = value;
  return {};
}

Result<> set_cache(DiskSpec& spec, const std::string& value) {
  const auto mode = parse_cache_mode(value);
  if (!mode) {
    return std::unexpected(bad_option("cache", value, "writeback, none, writethrough, directsync or unsafe"));
  }
  spec.cache = *mode;
  return {};
}

Result<> set_faults(DiskSpec& spec, const std::string& value) {
  auto rules = parse_fault_rules(value);
  if (!rules) return std::unexpected(std::move(rules.error()));
  spec.faults = std::move(*rules);
  return {};
}

Result<> set_read_errors(DiskSpec& spec, const std::string& value) {
  const auto policy = parse_error_policy(value);
  if (!policy || *policy == ErrorPolicy::StopIfNoSpace)
    return std::unexpected(bad_option("rerror", value, "report, ignore or stop"));
  spec.read_errors = *policy;
  return {};
}

Result<> set_write_errors(DiskSpec& spec, const std::string& value) {
  spec.write_errors = parse_error_policy(value);
  if (!spec.write_errors)
    return std::unexpected(bad_option("werror", value, "report, ignore, stop or enospc"));
  return {};
}

Result<> set_volatile_max(DiskSpec& spec, const std::string& value) {
  const auto bytes = parse_size(value);
  if (!bytes || *bytes < kSmallestVolatile) {
    return std::unexpected(
        bad_option("volatile-max", value, "a size of 64k or more, with a suffix k, M, G or T"));
  }
  spec.volatile_max = *bytes;
  return {};
}

Result<> set_record(DiskSpec& spec, const std::string& value) {
  if (value.empty() || value.find('\0') != value.npos)
    return std::unexpected(bad_option("record", value, "the name of a file for the log"));
  spec.record = value;
  return {};
}

Result<> set_data_file(DiskSpec& spec, const std::string& value) {
  if (value.empty() || value.find('\0') != value.npos)
    return std::unexpected(bad_option("data-file", value, "the name of a file or block device"));
  auto name = parse_file_name(value);
  if (!name) return std::unexpected(std::move(name.error()));
  spec.data_file = value;
  return {};
}

Result<> set_other_files(DiskSpec& spec, const std::string& value) {
  if (value == "on") {
    spec.other_files = FilesFrom::Anywhere;
  } else if (value == "off") {
    spec.other_files = FilesFrom::Nowhere;
  } else if (value == "same-directory") {
    spec.other_files = FilesFrom::SameDirectory;
  } else {
    return std::unexpected(bad_option("other-files", value, "on, off or same-directory"));
  }
  return {};
}

Result<> set_file(DiskSpec& spec, const std::string& value) {
  if (value.empty() || value.find('\0') != value.npos) {
    return std::unexpected(bad_option("file", value, "the name of a file or block device, or null-co://"));
  }
  auto name = parse_file_name(value);
  if (!name) return std::unexpected(std::move(name.error()));
  spec.file = value;
  return {};
}

const std::map<std::string, Setter>& setters() {
  static const std::map<std::string, Setter> table = {
      {"file", set_file},
      // Looked at before the others, since it decides which other options there are.
      {"format", [](DiskSpec&, const std::string&) { return Result<>{}; }},
      {"if",
       [](DiskSpec& spec, const std::string& value) -> Result<> {
         if (value == "virtio") {
           spec.interface = DiskInterface::Virtio;
         } else if (value == "ide") {
           spec.interface = DiskInterface::Ide;
         } else {
           return std::unexpected(bad_option("if", value, "virtio or ide"));
         }
         return {};
       }},
      {"media",
       [](DiskSpec& spec, const std::string& value) -> Result<> {
         if (value != "disk" && value != "cdrom")
           return std::unexpected(bad_option("media", value, "disk or cdrom"));
         spec.cdrom = value == "cdrom";
         return {};
       }},
      {"cache", set_cache},
      {"readonly", [](DiskSpec& spec,
                      const std::string& value) { return set_switch(spec.read_only, "readonly", value); }},
      {"serial",
       [](DiskSpec& spec, const std::string& value) {
         return set_name(spec.serial, "serial", value, kLongestSerial);
       }},
      {"id",
       [](DiskSpec& spec, const std::string& value) { return set_name(spec.id, "id", value, kLongestId); }},
      {"bus",
       [](DiskSpec& spec, const std::string& value) { return set_bounded(spec.bus, "bus", value, 1); }},
      {"unit",
       [](DiskSpec& spec, const std::string& value) { return set_bounded(spec.unit, "unit", value, 1); }},
      {"queues", set_queues},
      {"packed",
       [](DiskSpec& spec, const std::string& value) { return set_switch(spec.packed, "packed", value); }},
      {"discard",
       [](DiskSpec& spec, const std::string& value) -> Result<> {
         if (value != "unmap" && value != "ignore")
           return std::unexpected(bad_option("discard", value, "unmap or ignore"));
         spec.discard = value == "unmap";
         return {};
       }},
      {"locking",
       [](DiskSpec& spec, const std::string& value) -> Result<> {
         if (value == "auto") {
           spec.locking = LockPolicy::Auto;
           return {};
         }
         const auto on = parse_on_off(value);
         if (!on) return std::unexpected(bad_option("locking", value, "auto, on or off"));
         spec.locking = *on ? LockPolicy::On : LockPolicy::Off;
         return {};
       }},
      {"flush-elision",
       [](DiskSpec& spec, const std::string& value) {
         return set_switch(spec.flush_elision, "flush-elision", value);
       }},
      {"drop-cache",
       [](DiskSpec& spec, const std::string& value) {
         return set_switch(spec.drop_cache, "drop-cache", value);
       }},
      {"fault", set_faults},
      {"volatile",
       [](DiskSpec& spec, const std::string& value) {
         return set_switch(spec.volatile_filter, "volatile", value);
       }},
      {"volatile-max", set_volatile_max},
      {"record", set_record},
      {"backing",
       [](DiskSpec& spec, const std::string& value) { return set_switch(spec.backing, "backing", value); }},
      {"copy-on-read",
       [](DiskSpec& spec, const std::string& value) {
         return set_switch(spec.copy_on_read, "copy-on-read", value);
       }},
      // Looked up once all is known.
      {"backing-format",
       [](DiskSpec& spec, const std::string& value) {
         spec.backing_format = value;
         return Result<>{};
       }},
      {"data-file", set_data_file},
      {"other-files", set_other_files},
      {"rerror", set_read_errors},
      {"werror", set_write_errors},
  };
  return table;
}

Error spec_error(std::string detail) {
  return Error::invalid("disk option", "", std::move(detail));
}

std::string known_keys(const Format& format) {
  std::string list;
  for (const auto& [key, setter] : setters()) list += (list.empty() ? "" : ", ") + key;
  for (const auto& key : format.option_keys) list += ", " + key;
  return list + fmt::format(", {}...", kThrottlingPrefix);
}

Result<> set_throttling(DiskSpec& spec, const std::string& key, const std::string& value) {
  std::string known;
  for (const ThrottleField& field : throttle_fields(spec.throttling, ThrottleSpelling::DiskOption)) {
    known += (known.empty() ? "" : ", ") + field.name;
    if (field.name != key) continue;
    const auto number = field.bytes ? parse_size(value) : parse_number(value);
    if (!number) {
      return std::unexpected(bad_option(
          key, value, field.bytes ? "a number of bytes, or one with a suffix k, M, G or T" : "a number"));
    }
    *field.value = *number;
    return {};
  }
  return std::unexpected(
      spec_error(fmt::format("{}={}: there is no option {}; there are {}", key, value, key, known)));
}

// size= and read-zeroes= belong to null-co:// when that is the file.
Result<> set_null_option(DiskSpec& spec, const std::string& key, const std::string& value) {
  if (key == "read-zeroes") return set_switch(spec.null_read_zeroes, "read-zeroes", value);
  const auto bytes = parse_size(value);
  if (!bytes)
    return std::unexpected(bad_option("size", value, "a size in bytes, or with a suffix k, M, G or T"));
  spec.null_size = bytes;
  return {};
}

// Only a CD-ROM drive can be empty, and then nothing describes an image.
Result<> check_without_file(const DiskSpec& spec, const Format& format, const std::set<std::string>& seen) {
  if (!spec.cdrom) {
    return std::unexpected(spec_error("file= is missing: name the image, as in file=disk.img,format=raw"));
  }
  std::vector<std::string> about_image = {"format",  "fault",          "volatile", "volatile-max",
                                          "backing", "backing-format", "data-file"};
  about_image.insert(about_image.end(), format.option_keys.begin(), format.option_keys.end());
  for (const std::string& key : about_image) {
    if (!seen.contains(key)) continue;
    return std::unexpected(spec_error(
        fmt::format("{}= is about an image, and without file= the drive is empty: give file= too", key)));
  }
  return {};
}

}  // namespace

Error bad_option(std::string_view key, std::string_view value, std::string_view allowed) {
  return spec_error(fmt::format("{}={} is not possible: it must be {}", key, value, allowed));
}

std::vector<KeyValue> split_key_values(std::string_view text) {
  std::vector<KeyValue> result;
  std::string part;
  const auto finish = [&] {
    const auto equals = part.find('=');
    KeyValue item{.key = part.substr(0, equals), .value = std::nullopt};
    if (equals != part.npos) item.value = part.substr(equals + 1);
    result.push_back(std::move(item));
    part.clear();
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      part += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      part += ',';
      ++i;
    } else {
      finish();
    }
  }
  finish();
  return result;
}

Result<DiskSpec> parse_disk_spec(std::string_view text, const FormatRegistry& registry) {
  DiskSpec spec;
  const auto items = split_key_values(text);
  std::set<std::string> seen;
  bool null_file = false;
  for (const auto& [key, value] : items) {
    if (!value && key.empty()) {
      return std::unexpected(spec_error(items.size() == 1
                                            ? "it is empty: name the image, as in file=disk.img,format=raw"
                                            : "there is a comma too many: write one between two options, and "
                                              "two commas for one inside a value"));
    }
    if (!value || key.empty()) {
      return std::unexpected(
          spec_error(fmt::format("\"{}\" is no option: write key=value, with commas between them "
                                 "and two commas for one inside a value",
                                 key)));
    }
    if (!seen.insert(key).second) {
      return std::unexpected(
          spec_error(fmt::format("{}={}: {} is given twice; give it once", key, *value, key)));
    }
    if (key == "format") spec.format = *value;
    if (key == "file") null_file = value->starts_with(kNullPrefix);
  }
  const Format* format = registry.find(spec.format);
  if (!format) return std::unexpected(bad_option("format", spec.format, registry.names()));

  for (const auto& [key, value] : items) {
    if (const auto setter = setters().find(key); setter != setters().end()) {
      SPINDLE_TRY(setter->second(spec, *value));
    } else if (key.starts_with(kThrottlingPrefix)) {
      SPINDLE_TRY(set_throttling(spec, key, *value));
    } else if (null_file && (key == "size" || key == "read-zeroes")) {
      SPINDLE_TRY(set_null_option(spec, key, *value));
    } else if (std::find(format->option_keys.begin(), format->option_keys.end(), key) !=
               format->option_keys.end()) {
      spec.format_options.emplace(key, *value);
    } else {
      return std::unexpected(
          spec_error(fmt::format("{}={}: there is no option {}; a disk of format {} has {}", key, *value, key,
                                 spec.format, known_keys(*format))));
    }
  }
  if (spec.backing_format && !registry.find(*spec.backing_format))
    return std::unexpected(bad_option("backing-format", *spec.backing_format, registry.names()));
  if (spec.backing_format && !spec.backing) {
    return std::unexpected(spec_error("backing-format= means nothing with backing=off; leave one out"));
  }
  if (!seen.contains("file")) SPINDLE_TRY(check_without_file(spec, *format, seen));
  if (spec.interface == DiskInterface::Virtio && (spec.bus || spec.unit)) {
    return std::unexpected(spec_error(fmt::format(
        "{}= places a disk on an IDE channel; with if=virtio leave it out", spec.bus ? "bus" : "unit")));
  }
  if (spec.interface == DiskInterface::Ide && seen.contains("queues")) {
    return std::unexpected(spec_error("queues= is for if=virtio; an IDE channel has one command at a time"));
  }
  if (spec.cdrom && spec.interface != DiskInterface::Ide)
    return std::unexpected(spec_error("media=cdrom is a drive on an IDE channel: give if=ide too"));
  if (spec.cdrom && seen.contains("readonly") && !spec.read_only)
    return std::unexpected(
        spec_error("readonly=off: nobody writes to a CD-ROM; leave it out with media=cdrom"));
  spec.read_only |= spec.cdrom;
  if (spec.interface == DiskInterface::Ide && seen.contains("packed")) {
    return std::unexpected(
        spec_error("packed= is for if=virtio, whose queues it is about; with if=ide leave it out"));
  }
  if (seen.contains("volatile-max") && !spec.volatile_filter) {
    return std::unexpected(spec_error("volatile-max= means nothing without volatile=on"));
  }
  if (spec.copy_on_read && spec.read_only) {
    return std::unexpected(
        spec_error(fmt::format("copy-on-read=on writes to the image, which {} forbids; leave one out",
                               spec.cdrom ? "media=cdrom" : "readonly=on")));
  }
  if (!spec.record.empty() && spec.read_only) {
    return std::unexpected(
        spec_error(fmt::format("record= logs what changes the file, and nothing does with {}; leave it out",
                               spec.cdrom ? "media=cdrom" : "readonly=on")));
  }
  if (!spec.record.empty() && never_flushes(spec.cache)) {
    return std::unexpected(
        spec_error("record= logs what flushes make durable, and with cache=unsafe nothing is flushed; give "
                   "another cache="));
  }
  SPINDLE_TRY(check_throttle_limits(spec.throttling, ThrottleSpelling::DiskOption));
  return spec;
}

DiskSpec without_medium(DiskSpec drive) {
  const DiskSpec none;
  drive.file.clear();
  drive.format = none.format;
  drive.format_options.clear();
  drive.null_size.reset();
  drive.null_read_zeroes = none.null_read_zeroes;
  drive.faults.clear();
  drive.backing = none.backing;
  drive.backing_format.reset();
  drive.data_file.clear();
  drive.volatile_filter = false;
  return drive;
}

Result<DiskSpec> with_medium(const DiskSpec& drive, const std::string& file, const std::string& format,
                             const FormatRegistry& registry) {
  DiskSpec spec = without_medium(drive);
  SPINDLE_TRY(set_file(spec, file));
  if (!registry.find(format)) return std::unexpected(bad_option("format", format, registry.names()));
  spec.format = format;
  return spec;
}

DiskOptions disk_options(const DiskSpec& spec) {
  return DiskOptions{.id = spec.id,
                     .cache = spec.cache,
                     .read_only = spec.read_only,
                     .discard = spec.discard,
                     .read_errors = spec.read_errors,
                     .write_errors = spec.write_errors.value_or(ErrorPolicy::Report),
                     .whole_sectors = spec.whole_sectors};
}

}  // namespace spindle
