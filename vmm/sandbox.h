// Sandbox: what the threads of a running machine may still ask of the kernel.
//
// A guest that finds a fault in a device model should find nothing behind it. So each thread, before it meets
// a guest, gives up its capabilities and gets a seccomp filter that names the system calls of its role: no
// thread may start a program or a thread or make memory executable, and only two can open files. A call that
// is in no list ends the process with a message.
//
// What the filters do not see: io_uring's operations, which are not system calls. And threads share their
// memory: who commands one may in time make another do what that one may. What all of them lack is lacking
// for good.
//
// Threading: switched on before there are other threads, and then only read.
#pragma once

#include <cstdint>
#include <string_view>

#include "block/result.h"

namespace spindle::vmm {

enum class ThreadRole : uint8_t { Main, Vcpu, Disks, Console, Signals, Control, Clock, Trace };

class Sandbox {
 public:
  /// False in a build with sanitizers: they ask for more than any list here has.
  static bool available();
  /// From now on confine() does its work. Fails if this kernel has no seccomp filters.
  static Result<> switch_on();
  /// Confines the calling thread for good; threads that it starts inherit it. Does nothing unless switched
  /// on.
  static Result<> confine(ThreadRole role);
};

/// The same at the start of a thread, before it has met a guest. What fails is said, and ends the process.
void confine_or_end(ThreadRole role);

std::string_view to_string(ThreadRole role);

}  // namespace spindle::vmm
