// Terminal: raw mode for the terminal on standard input, and the way back. Whatever ends the process (return
// from main, exit(), a fatal signal, abort) puts the terminal back as it was; only SIGKILL and the real-time
// signals cannot be helped.
#pragma once

namespace spindle::vmm {

class Terminal {
 public:
  /// Switches `fd` to raw mode if it is a terminal; else does nothing. Once in a process.
  static void make_raw(int fd);
  /// Puts it back. Async-signal-safe, harmless when there is nothing to put back.
  static void restore();
};

}  // namespace spindle::vmm
