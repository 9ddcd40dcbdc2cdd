// Image locking, so that two programs do not write one image: the scheme of QEMU, so that its tools see ours
// in use and the reverse.
//
// Each open of an image has permissions it uses and permissions it does not share with others. Bit n of the
// first is the byte 100 + n of the file, bit n of the second the byte 200 + n. An open takes *read* locks on
// its bytes of both kinds, then looks whether anybody else holds a conflicting one: for what it does not
// share, the others' 100 + n; for what it uses, the others' 200 + n. Two programs that start at the same
// moment may refuse both, but never go on both. The locks are OFD locks: they belong to the open file, not to
// the process, and vanish with its last descriptor, whatever way the process ends.
//
// What an open takes here is what QEMU 7.2 takes for a guest's disk with share-rw=off:
//   writer   uses consistent-read and write, shares all but write     bytes 100, 101, 201
//   reader   uses consistent-read, shares all but write               bytes 100, 201
//   grows    (a format that allocates in its file) uses resize too and does not share it    bytes 103, 203
// `qemu-img info -U` asks for nothing and always works.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "block/result.h"

namespace spindle {

enum class LockPolicy : uint8_t {
  Auto,  ///< lock where the file system can; where it cannot, warn and go on
  On,    ///< lock or fail
  Off,   ///< take none and look at none
};

struct LockBits {
  uint32_t used = 0;
  uint32_t unshared = 0;
};

/// What an open for a guest's disk uses and does not share.
LockBits lock_bits(bool read_only, bool grows);

/// Takes and checks the locks of the open file `fd`. They end with its last close; after an error none is
/// held. InUse: somebody else holds a conflicting one. NotSupported: policy On, and the file system has no
/// locks.
Result<> lock_image(int fd, const std::string& path, LockBits bits, LockPolicy policy,
                    const std::function<void(std::string)>& warn);

}  // namespace spindle
