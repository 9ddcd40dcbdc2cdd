// img compare: whether two disks hold the same, whatever their formats and files are.
//
// What both say reads as zeroes is not read. A disk that is longer is the same as a shorter one if what it
// has more are zeroes; `strict` wants equal sizes, and data and holes in the same places.
//
// Threading: the reactor's thread.
#pragma once

#include <cstdint>
#include <string>

#include "block/disk.h"
#include "image/progress.h"

namespace spindle::image {

/// Exit statuses, as qemu-img has them.
inline constexpr int kCompareSame = 0;
inline constexpr int kCompareDifferent = 1;
inline constexpr int kCompareNotOpened = 2;
inline constexpr int kCompareNotMapped = 3;  ///< where the data lie could not be found out
inline constexpr int kCompareNotRead = 4;

struct Comparison {
  int status = kCompareSame;
  std::string text;  ///< the verdict, a line or two; none if it could not be reached
  Error error = {};  ///< why it could not, with the statuses above kCompareDifferent
};

Task<Comparison> compare_disks(Disk& first, Disk& second, bool strict, Progress& progress);

}  // namespace spindle::image
