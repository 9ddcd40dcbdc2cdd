// The control protocol: one JSON object a line is a request, and each gets one line of answer. Shape, names
// and error classes are those of QMP where it has them; docs/control.md is the user's page.
//
//   {"execute": "query-status", "arguments": {}, "id": 7}
//   {"return": {"status": "running", "running": true}, "id": 7}
//   {"error": {"class": "CommandNotFound", "desc": "The command query-statu has not been found"}, "id": 7}
//
// Everything in a request is checked before anything is done: unknown members, unknown arguments, wrong
// types.
#pragma once

#include <string>
#include <string_view>

#include "vmm/control/target.h"

namespace spindle::vmm {

/// What a client is greeted with, a line.
std::string control_greeting();

/// The answer to one request, a line. Never fails: what is wrong is in the answer.
std::string answer_request(std::string_view line, ControlTarget& target);

}  // namespace spindle::vmm
