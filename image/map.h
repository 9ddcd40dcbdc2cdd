// Where an image's data lie, in the words of qemu-img map.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "image/open_image.h"

namespace spindle::image {

enum class MapStyle : uint8_t { Human, Json };

struct MapRange {
  uint64_t start = 0;
  std::optional<uint64_t> length = std::nullopt;  ///< else to the end
};

/// Prints the map of `disk` through `print`, in pieces, neighbours of one kind joined. `name` is the file
/// that the human table names. NotSupported for the table if data do not lie in the file as they are.
Task<Result<>> print_map(Disk& disk, std::string name, MapRange range, MapStyle style,
                         std::function<Result<>(std::string_view)> print);

}  // namespace spindle::image
