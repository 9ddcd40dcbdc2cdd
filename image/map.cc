#include "image/map.h"

#include <fmt/format.h>

#include <algorithm>

namespace spindle::image {
namespace {

constexpr std::size_t kBatch = 64 << 10;  // of text, before it is printed

std::string hex(uint64_t number) {
  return fmt::format("{}{:x}", number == 0 ? "" : "0x", number);
}

bool continues(const Extent& first, const Extent& next) {
  return first.data == next.data && first.zero == next.zero && first.depth == next.depth &&
         first.file_offset.has_value() == next.file_offset.has_value() &&
         (!first.file_offset || *first.file_offset + first.length == *next.file_offset);
}

class Printer {
 public:
  Printer(std::string name, MapStyle style, std::function<Result<>(std::string_view)> print)
      : name_(std::move(name)), style_(style), print_(std::move(print)) {
    if (style_ == MapStyle::Human) {
      text_ = fmt::format("{:<16}{:<16}{:<16}{}\n", "Offset", "Length", "Mapped to", "File");
    } else {
      text_.push_back('[');
    }
  }

  Result<> add(Extent extent) {
    if (last_ && continues(*last_, extent)) {
      last_->length += extent.length;
      return {};
    }
    SPINDLE_TRY(finish_last());
    last_ = extent;
    return {};
  }

  Result<> end(uint64_t start) {
    if (!last_ && style_ == MapStyle::Json) {
      text_ += fmt::format(
          "{{ \"start\": {}, \"length\": 0, \"depth\": 0, \"present\": false, \"zero\": false, \"data\": "
          "false}}",
          start);
    }
    SPINDLE_TRY(finish_last());
    if (style_ == MapStyle::Json) text_ += "]\n";
    return print_(text_);
  }

 private:
  Result<> finish_last() {
    if (!last_) return {};
    const Extent& extent = *last_;
    if (style_ == MapStyle::Json) {
      if (any_) text_ += ",\n";
      any_ = true;
      text_ += fmt::format(
          "{{ \"start\": {}, \"length\": {}, \"depth\": {}, \"present\": true, \"zero\": {}, \"data\": {}",
          extent.offset, extent.length, extent.depth, extent.zero, extent.data);
      if (extent.file_offset) text_ += fmt::format(", \"offset\": {}", *extent.file_offset);
      text_ += "}";
    } else if (extent.data && !extent.zero) {
      if (!extent.file_offset) {
        return std::unexpected(Error{.kind = ErrorKind::NotSupported,
                                     .operation = "map",
                                     .node = name_,
                                     .offset = extent.offset,
                                     .detail = "data do not lie in the file as they are; use --output=json"});
      }
      text_ += fmt::format("{:<16}{:<16}{:<16}{}\n", hex(extent.offset), hex(extent.length),
                           hex(*extent.file_offset), name_);
    }
    if (text_.size() < kBatch) return {};
    auto printed = print_(text_);
    text_.clear();
    return printed;
  }

  std::string name_;
  MapStyle style_;
  std::function<Result<>(std::string_view)> print_;
  std::string text_;
  std::optional<Extent> last_;
  bool any_ = false;
};

}  // namespace

Task<Result<>> print_map(Disk& disk, std::string name, MapRange range, MapStyle style,
                         std::function<Result<>(std::string_view)> print) {
  Printer printer(std::move(name), style, std::move(print));
  const uint64_t size = disk.size();
  uint64_t position = range.start;
  const uint64_t end =
      position >= size ? position : position + std::min(size - position, range.length.value_or(size));
  while (position < end) {
    auto extent = co_await disk.node().map(position, end - position);
    if (!extent) co_return std::unexpected(std::move(extent.error()));
    if (extent->length == 0 || extent->length > end - position) {
      co_return std::unexpected(Error{
          .operation = "map", .node = disk.id(), .offset = position, .detail = "the answer makes no sense"});
    }
    position += extent->length;
    SPINDLE_CO_TRY(printer.add(*extent));
  }
  co_return printer.end(range.start);
}

}  // namespace spindle::image
