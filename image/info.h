// What an image is, in the words of qemu-img info.
#pragma once

#include <optional>
#include <string>

#include "image/open_image.h"

namespace spindle::image {

struct ImageInfo {
  std::string name;
  std::string format;
  uint64_t virtual_size = 0;
  std::optional<uint64_t>
      disk_size;              ///< bytes that the file takes of its file system; not known of what is no file
  uint32_t cluster_size = 0;  ///< 0: the format has none
};

/// Opens the image read-only and closes it again.
Task<Result<ImageInfo>> image_info(const Workshop& shop, ImageName name, OpenMode mode);

std::string info_text(const ImageInfo& info);
/// `chain`: as an array, as --backing-chain gives it.
std::string info_json(const ImageInfo& info, bool chain);

}  // namespace spindle::image
