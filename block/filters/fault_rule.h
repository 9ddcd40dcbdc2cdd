// FaultRule: what the fault node does to which operation, and how that is written on a command line.
//
//   rules   = rule *( ";" rule )
//   rule    = kind *( ":" item )
//   kind    = read | write | write_zeroes | discard | flush | fua | any
//   item    = N               from the N-th operation that matches, counted from 1 (default 1)
//           | @OFFSET+LENGTH  only operations that touch this range of bytes (sizes may have suffixes); none
//           is a
//                             range of a flush
//           | always          every one from the N-th on; without it just the N-th
//           | ERRNO           fail with it: a name as EIO or ENOSPC; or its number, as the second number of a
//           rule | delay=MS        let MS milliseconds pass first | hold            wait until release_all()
//           (tests) | after           do the operation first, then fail, delay or hold its completion
//
// `write` matches every write, `fua` only those with the flag. A rule must fail, delay or hold. Examples:
//   flush:2:EIO                     the second flush fails
//   write:@4096+512:ENOSPC:always   every write that touches the bytes 4096 to 4607 fails
//   read:10:delay=250               the tenth read takes a quarter of a second longer
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "block/result.h"

namespace spindle {

enum class FaultKind : uint8_t { Read, Write, WriteZeroes, Discard, Flush, Fua, Any };

struct FaultRule {
  FaultKind kind = FaultKind::Any;
  uint64_t from = 1;    ///< the n-th match, counted from 1
  bool always = false;  ///< and every later one
  struct Range {
    uint64_t offset = 0;
    uint64_t length = 0;
  };
  std::optional<Range> range = std::nullopt;
  int number = 0;  ///< errno to fail with, or 0
  std::chrono::milliseconds delay{0};
  bool hold = false;
  bool after = false;  ///< the child does its part first
};

Result<std::vector<FaultRule>> parse_fault_rules(std::string_view text);

}  // namespace spindle
