// Image: a VDI image that no guest uses, for operations on the whole of it. They work on the file, in steps
// with barriers between them, and are each safe at any crash point: their headers say why.
//
// Reads and writes what it is told to, in the order it is told. Nothing here decides about order.
//
// Threading: the reactor of the file.
#pragma once

#include <cstdint>
#include <vector>

#include "block/node.h"
#include "formats/vdi/block_map.h"
#include "formats/vdi/header.h"
#include "formats/vdi/mutation.h"

namespace spindle::vdi {

class Image {
 public:
  /// Reads header and map, after a barrier: what another process wrote and was killed before it flushed may
  /// be gone after a crash, and may not be built upon. The barrier is left out if the file is read-only.
  static Task<Result<Image>> load(Node& file);

  Node& file() { return *file_; }
  Header header;
  BlockMap map;

  /// FlushFailed if it fails (D6).
  Task<Result<>> barrier();
  /// The header as it is in memory.
  Task<Result<>> write_header();
  /// Entries that changed.
  Task<Result<>> write_entries();
  /// What the place `from` holds to `to`, which lies inside the file; what is zero there becomes a hole, or
  /// zeroes.
  Task<Result<>> copy_place(uint32_t from, uint32_t to);
  /// Makes the file long enough for `places` places, if it is shorter.
  Task<Result<>> make_places(uint64_t places);
  /// Cuts off what lies above `places` places.
  Task<Result<>> cut_places(uint64_t places);
  /// Whether all of the place reads as zeroes.
  Task<Result<bool>> place_is_zero(uint32_t place);
  /// Places that the file has, be it in part; and whole ones.
  uint64_t places_begun() const;

 private:
  Image(Node& file, Header header, BlockMap map);

  Node* file_;
  std::vector<std::byte> piece_;
};

}  // namespace spindle::vdi
