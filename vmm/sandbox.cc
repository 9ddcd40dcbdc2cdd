#include "vmm/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vmm/output.h"
#include "vmm/terminal.h"

namespace spindle::vmm {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitizers = true;
#else
constexpr bool kSanitizers = false;
#endif

// Written before there are other threads. The names are of system calls, by number: who is in the middle of a
// forbidden one cannot ask for them any more.
bool switched_on = false;
std::vector<std::string> call_names;

using Filter = std::unique_ptr<void, decltype([](scmp_filter_ctx filter) { seccomp_release(filter); })>;

// Memory, locks, clocks, messages and the end: of every thread.
constexpr int kEverybody[] = {SCMP_SYS(brk),
                              SCMP_SYS(clock_gettime),
                              SCMP_SYS(close),
                              SCMP_SYS(exit),
                              SCMP_SYS(exit_group),
                              SCMP_SYS(futex),
                              SCMP_SYS(getpid),
                              SCMP_SYS(getrandom),
                              SCMP_SYS(gettid),
                              SCMP_SYS(madvise),
                              SCMP_SYS(mremap),
                              SCMP_SYS(munmap),
                              SCMP_SYS(poll),
                              SCMP_SYS(ppoll),
                              SCMP_SYS(read),
                              SCMP_SYS(restart_syscall),
                              SCMP_SYS(rt_sigaction),
                              SCMP_SYS(rt_sigprocmask),
                              SCMP_SYS(rt_sigreturn),
                              SCMP_SYS(sched_getaffinity),  // malloc: how many arenas are worth it
                              SCMP_SYS(sched_yield),
                              SCMP_SYS(write),
                              SCMP_SYS(writev)};
// Statistics, the control socket's name, and the kernel loaded again at a reset.
constexpr int kMain[] = {SCMP_SYS(fchmod),   SCMP_SYS(fstat),   SCMP_SYS(getcwd),     SCMP_SYS(lseek),
                         SCMP_SYS(openat),   SCMP_SYS(pread64), SCMP_SYS(newfstatat), SCMP_SYS(rename),
                         SCMP_SYS(readlink), SCMP_SYS(unlink)};
constexpr int kVcpu[] = {SCMP_SYS(eventfd2)};  // interrupts of MSI-X vectors
// Reading, writing and flushing go by the ring; these open, lock, look at and resize images.
constexpr int kDisks[] = {SCMP_SYS(eventfd2),
                          SCMP_SYS(fadvise64),
                          SCMP_SYS(fcntl),
                          SCMP_SYS(fstat),
                          SCMP_SYS(ftruncate),
                          SCMP_SYS(io_uring_enter),
                          SCMP_SYS(io_uring_register),
                          SCMP_SYS(lseek),
                          SCMP_SYS(newfstatat),
                          SCMP_SYS(openat),
                          SCMP_SYS(pread64),  // which alignment O_DIRECT needs, where statx does not say
                          SCMP_SYS(statx)};
constexpr int kControl[] = {SCMP_SYS(accept4), SCMP_SYS(recvfrom), SCMP_SYS(sendto)};

std::span<const int> calls_of(ThreadRole role) {
  switch (role) {
    case ThreadRole::Main:
      return kMain;
    case ThreadRole::Vcpu:
      return kVcpu;
    case ThreadRole::Disks:
      return kDisks;
    case ThreadRole::Control:
      return kControl;
    case ThreadRole::Console:
    case ThreadRole::Signals:
    case ThreadRole::Clock:
    case ThreadRole::Trace:
      return {};
  }
  return {};
}

bool opens_files(ThreadRole role) {
  return role == ThreadRole::Main || role == ThreadRole::Disks;
}

struct Ioctls {
  uint32_t mask;
  uint32_t value;
};
constexpr uint32_t kWhole = 0xffffffff, kType = 0xff00;
constexpr Ioctls kKvm{kType, KVMIO << 8}, kBlockDevice{kType, 0x12 << 8};
// Of a terminal only its settings, which whoever ends the process puts back: TIOCSTI would type into the
// user's shell.
constexpr Ioctls kGetTerminal{kWhole, TCGETS}, kSetTerminal{kWhole, TCSETS};

std::span<const Ioctls> ioctls_of(ThreadRole role) {
  static constexpr Ioctls kTerminal[] = {kGetTerminal, kSetTerminal},
                          kMachine[] = {kKvm, kGetTerminal, kSetTerminal},
                          kImages[] = {kKvm, kBlockDevice, kGetTerminal, kSetTerminal};
  switch (role) {
    case ThreadRole::Signals:
    case ThreadRole::Control:
    case ThreadRole::Trace:
      return kTerminal;
    case ThreadRole::Console:  // input raises the serial port's interrupt
    case ThreadRole::Clock:
    case ThreadRole::Vcpu:
    case ThreadRole::Main:
      return kMachine;
    case ThreadRole::Disks:
      return kImages;
  }
  return {};
}

// A call that is in no list raises SIGSYS in the thread that made it, which may hold any lock: no memory is
// asked for here.
void on_forbidden_call(int, siginfo_t* info, void*) {
  char thread[16] = {}, line[320];
  prctl(PR_GET_NAME, thread);
  const auto number = static_cast<std::size_t>(info->si_syscall);
  const std::string_view name = number < call_names.size() ? call_names[number] : std::string_view();
  Terminal::restore();
  const auto written =
      fmt::format_to_n(line, sizeof line,
                       "spindle: the sandbox ended the run: its thread \"{}\" asked for system call {}{}{}, "
                       "which it has no use "
                       "for; the disks were not flushed. Please report this; --no-sandbox runs without\n",
                       static_cast<const char*>(thread), number, name.empty() ? "" : ", ", name);
  say_line({line, written.size < sizeof line ? written.size : sizeof line});
  _exit(1);
}

Result<> failed(int number, ThreadRole role) {
  return std::unexpected(Error::from_errno(number, "sandbox", std::string(to_string(role)) + " thread"));
}

// A root without capabilities is a user like any other, who owns root's files. The threads that open files
// keep what lets root write those of other users, if they have it: the user named these files as root.
Result<> drop_capabilities(ThreadRole role) {
  using Sets = std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3>;
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  Sets now{}, wanted{};
  if (syscall(SYS_capget, &header, now.data()) != 0) return failed(errno, role);
  if (opens_files(role)) {
    wanted[0].permitted = now[0].permitted & (CAP_TO_MASK(CAP_DAC_OVERRIDE) | CAP_TO_MASK(CAP_FOWNER));
    wanted[0].effective = now[0].effective & wanted[0].permitted;
  }
  if (syscall(SYS_capset, &header, wanted.data()) != 0) return failed(errno, role);
  return {};
}

// The rules of one thread; an error is kept until the end.
class Rules {
 public:
  explicit Rules(scmp_filter_ctx filter) : filter_(filter) {}

  void allow(int call, std::initializer_list<scmp_arg_cmp> arguments = {}) {
    add(SCMP_ACT_ALLOW, call, arguments);
  }
  void add(uint32_t action, int call, std::initializer_list<scmp_arg_cmp> arguments = {}) {
    const auto count = static_cast<unsigned>(arguments.size());
    keep(seccomp_rule_add_array(filter_, action, call, count, arguments.begin()));
  }
  void keep(int result) {
    if (result < 0) error_ = -result;
  }
  int error() const { return error_; }

 private:
  scmp_filter_ctx filter_;
  int error_ = 0;
};

}  // namespace

std::string_view to_string(ThreadRole role) {
  switch (role) {
    case ThreadRole::Main:
      return "main";
    case ThreadRole::Vcpu:
      return "vCPU";
    case ThreadRole::Disks:
      return "disks";
    case ThreadRole::Console:
      return "console";
    case ThreadRole::Signals:
      return "signals";
    case ThreadRole::Control:
      return "control";
    case ThreadRole::Clock:
      return "clock";
    case ThreadRole::Trace:
      return "trace";
  }
  return "";
}

bool Sandbox::available() {
  return !kSanitizers;
}

Result<> Sandbox::switch_on() {
  uint32_t action = SECCOMP_RET_TRAP;
  if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) != 0) {
    Error error = Error::from_errno(errno, "sandbox", "");
    error.detail = "this kernel, or what we run in, has no seccomp filters; --no-sandbox runs without";
    return std::unexpected(std::move(error));
  }
  using Name = std::unique_ptr<char, decltype([](char* name) { std::free(name); })>;
  constexpr int kCalls = 512;
  call_names.resize(kCalls);
  for (int call = 0; call < kCalls; ++call) {
    if (const Name name(seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, call)); name)
      call_names[static_cast<std::size_t>(call)] = name.get();
  }
  struct sigaction handler {};
  handler.sa_sigaction = on_forbidden_call;
  handler.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &handler, nullptr);
  prepare_to_say();
  switched_on = true;
  return {};
}

Result<> Sandbox::confine(ThreadRole role) {
  if (!switched_on) return {};
  SPINDLE_TRY(drop_capabilities(role));
  const Filter filter(seccomp_init(SCMP_ACT_TRAP));
  if (!filter) return failed(ENOMEM, role);
  Rules rules(filter.get());
  for (const int call : kEverybody) rules.allow(call);
  for (const int call : calls_of(role)) rules.allow(call);
  for (const auto& [mask, value] : ioctls_of(role))
    rules.allow(SCMP_SYS(ioctl), {SCMP_A1(SCMP_CMP_MASKED_EQ, mask, value)});
  rules.allow(SCMP_SYS(mmap), {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)});
  rules.allow(SCMP_SYS(mprotect), {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)});
  rules.allow(SCMP_SYS(prctl), {SCMP_A0(SCMP_CMP_EQ, PR_GET_NAME)});
  rules.allow(SCMP_SYS(tgkill), {SCMP_A0(SCMP_CMP_MASKED_EQ, kWhole, static_cast<scmp_datum_t>(getpid()))});
  // Refused, and not the end: malloc looks at /proc/sys/vm/overcommit_memory when it first gives memory of a
  // thread back, and does without.
  if (!opens_files(role)) rules.add(SCMP_ACT_ERRNO(EACCES), SCMP_SYS(openat));
  // Of a filter's instructions a vCPU meets this call's at each exit of the guest; what is allowed whatever
  // its arguments are, Linux 5.11 and later remember.
  rules.keep(seccomp_syscall_priority(filter.get(), SCMP_SYS(ioctl), UINT8_MAX));
  // Before Linux 5.16 a filter else slows the thread, and with it the guest, down by speculation controls.
  rules.keep(seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_SSB, 1));
  if (rules.error() == 0) rules.keep(seccomp_load(filter.get()));
  return rules.error() == 0 ? Result<>{} : failed(rules.error(), role);
}

void confine_or_end(ThreadRole role) {
  const auto confined = Sandbox::confine(role);
  if (confined) return;
  say("spindle: " + confined.error()->message());
  _exit(1);
}

}  // namespace spindle::vmm
