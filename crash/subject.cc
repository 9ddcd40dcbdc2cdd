#include "crash/subject.h"

#include <fmt/format.h>

#include <algorithm>

namespace spindle::crash {
namespace {

// For a format that has no create of its own a file of the right size is an image (raw).
Task<Result<>> create_by_size(std::shared_ptr<Node> file, uint64_t size) {
  auto emptied = co_await file->resize(0);
  if (!emptied) co_return emptied;
  auto sized = co_await file->resize(size);
  if (!sized) co_return sized;
  co_return co_await file->flush();
}

}  // namespace

FormatOptions small_blocks(const Format& format, FormatOptions options) {
  constexpr const char* kSmall = "4096";
  for (const char* key : {"block_size", "cluster_size"}) {
    if (std::ranges::find(format.create_options, key, &CreateOptionHelp::key) != format.create_options.end())
      options.try_emplace(key, kSmall);
  }
  return options;
}

Result<Subject> subject_of(const Format& format, const FormatOptions& options) {
  FormatOptions for_open, for_create;
  Subject subject{.name = format.name, .create = {}, .open = {}};
  for (const auto& [key, value] : options) {
    const bool opens = std::ranges::find(format.option_keys, key) != format.option_keys.end();
    const bool creates =
        std::ranges::find(format.create_options, key, &CreateOptionHelp::key) != format.create_options.end();
    if (!opens && !creates) {
      return std::unexpected(
          Error::invalid("crash", format.name, fmt::format("the format has no option {}", key)));
    }
    if (opens) for_open[key] = value;
    if (creates) for_create[key] = value;
    subject.name += fmt::format(" {}={}", key, value);
    if (key == "metadata-flush" && value == "none") subject.promises_nothing = true;
  }
  subject.open = [open = format.open, for_open](std::shared_ptr<Node> file) {
    return open(std::move(file), OpenOptions{.options = for_open});
  };
  if (format.create) {
    subject.create = [create = format.create, for_create](std::shared_ptr<Node> file, uint64_t size) {
      return create(std::move(file), CreateOptions{.size = size, .options = for_create});
    };
  } else {
    subject.create = create_by_size;
  }
  subject.check = format.check;
  subject.sized_by_file = !format.check;
  subject.compact = format.compact;
  return subject;
}

}  // namespace spindle::crash
