// img convert: makes one image from another.
//
// The source is opened first and the target only touched when that has succeeded. A target that is the source
// is refused before anything is lost. When it returns without an error the target is whole, and safe on disk
// unless the cache mode is unsafe: data, metadata and, for a file that was made, its name. After an error a
// file that was made is removed again; one that was there before is left in pieces, and the error says so.
//
// Threading: the reactor's thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "image/convert_copy.h"
#include "image/create.h"
#include "image/open_image.h"

namespace spindle::image {

struct ConvertRequest {
  std::vector<ImageName> sources;  ///< one after the other; the target holds all of them
  CacheMode source_cache = CacheMode::Writeback;
  bool force_share = false;
  std::string target;
  std::string target_format = "raw";
  bool target_options = false;  ///< --target-image-opts: `target` is a list; with `keep_target` only
  CacheMode target_cache = CacheMode::Writeback;
  bool keep_target = false;  ///< -n: the target is there already
  CreateList create = {};
  CopyOptions copy = {};  ///< what it says of the place is of the only source, if there is only one
  uint64_t rate = 0;      ///< bytes a second that are written at most; 0: no limit
  bool pad_raw = false;   ///< a raw target has whole sectors, too
};

/// See above. Invalid for what the user can mend.
Task<Result<>> convert_image(const Workshop& shop, ConvertRequest request, Progress& progress);

}  // namespace spindle::image
