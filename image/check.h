// Checking, mending and compacting whole images: the format does the work, here are the opening, the second
// look after a repair, and the words and exit statuses of qemu-img check.
#pragma once

#include <string>

#include "image/open_image.h"

namespace spindle::image {

/// Exit statuses of check and compact, as qemu-img has them.
inline constexpr int kCheckClean = 0;
inline constexpr int kCheckFailed = 1;  ///< it could not be carried out
inline constexpr int kCheckCorrupt = 2;
inline constexpr int kCheckLeaks = 3;
inline constexpr int kCheckUnsupported = 63;

struct CheckOutcome {
  std::string file;
  std::string format;
  /// What is left. After a repair, what a second check found, with the counts of what the first one mended.
  CheckReport report;
  /// What was mended, each in a line; the report's own messages are of what is left then.
  std::vector<std::string> mended = {};
};

/// NotSupported if the format has no checks, or is raw.
Task<Result<CheckOutcome>> check_image(const Workshop& shop, ImageName name, OpenMode mode, Repair repair);

/// Makes the file as small as its content allows. NotSupported if the format cannot.
Task<Result<CheckOutcome>> compact_image(const Workshop& shop, ImageName name, OpenMode mode);

std::string check_text(const CheckOutcome& outcome);
std::string check_json(const CheckOutcome& outcome);
int check_status(const CheckReport& report);
int check_status(const Error& error);

}  // namespace spindle::image
