// Ways out of the process that neither fail nor hang it: messages for the user, and descriptors that do not
// block.
//
// Whoever reads standard error may have gone, or may have stopped reading; disks must be flushed and closed
// all the same. So a message that cannot be delivered is dropped.
#pragma once

#include <string_view>

#include "vmm/kvm.h"

namespace spindle::vmm {

/// Writes `text` and a line feed to standard error. Any thread. Errors are ignored;
/// a terminal or pipe that takes nothing for a second loses the rest. SIGPIPE must be ignored in the process.
void say(std::string_view text) noexcept;

/// Opens what say() needs, for a process whose threads will no longer be allowed to. Before there are other
/// threads; standard error stays what it is from then on.
void prepare_to_say();

/// say() for a signal handler, after prepare_to_say(): asks for no memory. `line` ends in its line feed.
void say_line(std::string_view line) noexcept;

/// The terminal behind `fd`, opened anew for writing without blocking: O_NONBLOCK set on `fd` itself would be
/// there for every process that shares it. Empty if it is no terminal or cannot be opened.
Fd open_nonblocking_terminal(int fd);

}  // namespace spindle::vmm
