// What confined threads may and may not do, each in a process of its own.
#include "vmm/sandbox.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "block/protocols/file_node.h"
#include "block/record/record_node.h"
#include "block/test_support/environment.h"
#include "vmm/statistics.h"
#include "vmm/terminal.h"

namespace spindle::vmm {
namespace {

constexpr ThreadRole kRoles[] = {ThreadRole::Main,    ThreadRole::Vcpu,    ThreadRole::Disks,
                                 ThreadRole::Console, ThreadRole::Signals, ThreadRole::Control,
                                 ThreadRole::Clock,   ThreadRole::Trace};

bool skipped() {
  if (Sandbox::available()) return false;
  std::puts("skipped: this build's sanitizers need what the sandbox forbids");
  return true;
}

struct Ended {
  int status = -1;  ///< exit status, or -1 for a signal
  std::string said;
};

// Runs `work` in a child, 0 if it returned, and collects what it says on standard error.
Ended in_child(const std::function<void()>& work) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    work();
    _exit(0);
  }
  close(ends[1]);
  Ended ended;
  char buffer[512];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    ended.said.append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status)) ended.status = WEXITSTATUS(status);
  return ended;
}

// The same on a confined thread that is not the process's first: memory has ways of its own there.
Ended confined(ThreadRole role, const std::function<void()>& work) {
  return in_child([&] {
    if (!Sandbox::switch_on()) _exit(99);
    std::thread([&] {
      pthread_setname_np(pthread_self(), "tested");
      if (!Sandbox::confine(role)) _exit(98);
      work();
    }).join();
  });
}

void forbidden(ThreadRole role, const char* call, const std::function<void()>& work) {
  const Ended ended = confined(role, work);
  INFO(to_string(role) << ": " << call << ": " << ended.said);
  CHECK(ended.status == 1);
  CHECK(ended.said.find("sandbox") != std::string::npos);
  CHECK(ended.said.find("\"tested\"") != std::string::npos);
  CHECK(ended.said.find(std::string(", ") + call + ",") != std::string::npos);
  CHECK(ended.said.find("--no-sandbox") != std::string::npos);
}

void fill_and_free_memory() {
  for (int round = 0; round < 2; ++round) {
    std::vector<std::string> memory(20'000, std::string(1000, 'x'));
    memory.emplace_back(1 << 20, 'y');
  }
}

}  // namespace

TEST_CASE("sandbox: memory, locks, threads' ends and messages work in every thread") {
  if (skipped()) return;
  for (const ThreadRole role : kRoles) {
    const Ended ended = confined(role, [] {
      fill_and_free_memory();
      if (write(STDERR_FILENO, "y", 1) != 1) _exit(5);
    });
    INFO(to_string(role) << ": " << ended.said);
    CHECK(ended.status == 0);
    CHECK(ended.said == "y");
  }
}

TEST_CASE("sandbox: more threads than malloc has arenas to begin with") {
  if (skipped()) return;
  const Ended ended = in_child([] {
    if (!Sandbox::switch_on()) _exit(99);
    constexpr int kThreads = 24;
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([] {
        if (!Sandbox::confine(ThreadRole::Vcpu)) _exit(98);
        fill_and_free_memory();
      });
    }
    for (auto& thread : threads) thread.join();
  });
  INFO(ended.said);
  CHECK(ended.status == 0);
}

TEST_CASE("sandbox: the disks' thread opens, looks at, fills and closes media in every way") {
  if (skipped()) return;
  for (const std::filesystem::path& parent :
       {std::filesystem::path("/dev/shm"), std::filesystem::temp_directory_path()}) {
    if (access(parent.c_str(), W_OK) != 0) continue;
    const test::TempDir directory(parent);
    REQUIRE(directory.ok());
    const std::string image = directory.file("image", 1 << 20), log = directory.file("log");
    for (const bool direct : {false, true}) {
      const Ended ended = in_child([&] {
        if (!Sandbox::switch_on()) _exit(99);
        std::thread([&] {
          auto reactor = Reactor::create();
          if (!reactor) _exit(97);
          if (!Sandbox::confine(ThreadRole::Disks)) _exit(98);
          for (const bool read_only : {true, false}) {
            auto file = FileNode::open(
                **reactor,
                {.path = image, .read_only = read_only, .direct = direct, .drop_cache = true, .grows = true});
            if (!file && direct) return;  // not on this file system; that is an error and no end
            if (!file) _exit(96);
            std::string text(20 << 20, 'x');
            const iovec part{text.data(), text.size()};
            const auto good = [&](Task<Result<>> task) {
              if (!(*reactor)->wait(std::move(task))) _exit(95);
            };
            if (read_only) {
              good((*file)->close());
              continue;
            }
            auto node = (*reactor)->wait(RecordNode::open(*file, log));  // which grows as it is written
            if (!node) _exit(94);
            good((*node)->resize(text.size()));
            good((*node)->write(0, Buffers(std::span(&part, 1)), {.fua = true}));
            good((*node)->write_zeroes(0, 65536, {.unmap = true}));
            good((*node)->discard(65536, 65536));
            good((*node)->flush());
            if (!(*reactor)->wait((*node)->map(0, text.size()))) _exit(93);
            good((*node)->close());
          }
        }).join();
      });
      INFO(parent.string() << ": " << ended.said);
      CHECK(ended.status == 0);
    }
  }
}

TEST_CASE("sandbox: no thread starts a program, makes memory executable or opens a socket") {
  if (skipped()) return;
  for (const ThreadRole role : kRoles) {
    forbidden(role, "execve", [] { execl("/bin/true", "true", nullptr); });
    forbidden(role, "mmap",
              [] { (void)mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); });
    forbidden(role, "socket", [] { (void)socket(AF_INET, SOCK_STREAM, 0); });
    forbidden(role, "ptrace", [] { (void)syscall(SYS_ptrace, 0, 0, 0, 0); });
    forbidden(role, "ioctl", [] { (void)ioctl(0, TIOCSTI, "x"); });
    forbidden(role, "kill", [] { (void)syscall(SYS_kill, 1, 0); });
    forbidden(role, "tgkill", [] { (void)syscall(SYS_tgkill, 1, 1, 0); });
    forbidden(role, "io_uring_setup", [] { (void)syscall(SYS_io_uring_setup, 1, nullptr); });
    forbidden(role, "seccomp", [] { (void)syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, nullptr); });
  }
}

TEST_CASE("sandbox: only main and the disks' thread open files, and none starts a thread") {
  if (skipped()) return;
  for (const ThreadRole role : kRoles) {
    const bool opens = role == ThreadRole::Main || role == ThreadRole::Disks;
    INFO(to_string(role));
    CHECK(confined(role, [opens] {
            const int fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
            if (opens ? fd < 0 : fd >= 0 || errno != EACCES) _exit(5);
          }).status == 0);
    // The C library blocks all signals while it starts a thread, so this ends without a word.
    CHECK(confined(role, [] { std::thread([] {}).join(); }).status == -1);
  }
  for (const ThreadRole role : {ThreadRole::Vcpu, ThreadRole::Console, ThreadRole::Control})
    forbidden(role, "rename", [] { (void)rename("/nowhere/a", "/nowhere/b"); });
  forbidden(ThreadRole::Vcpu, "io_uring_enter",
            [] { (void)syscall(SYS_io_uring_enter, -1, 0, 0, 0, nullptr, 0); });
  forbidden(ThreadRole::Disks, "unlink", [] { (void)unlink("/nowhere/a"); });
  forbidden(ThreadRole::Signals, "accept4", [] { (void)accept4(-1, nullptr, nullptr, 0); });
}

TEST_CASE("sandbox: no capabilities are left, but to write other users' files where files are opened") {
  if (skipped()) return;
  for (const ThreadRole role : kRoles) {
    const bool opens = role == ThreadRole::Main || role == ThreadRole::Disks;
    const Ended ended = in_child([role, opens] {
      int ready[2], go_on[2];
      if (!Sandbox::switch_on() || pipe(ready) != 0 || pipe(go_on) != 0) _exit(99);
      std::thread thread([&] {
        const pid_t id = gettid();
        if (!Sandbox::confine(role) || write(ready[1], &id, sizeof id) != sizeof id) _exit(98);
        char byte;
        if (read(go_on[0], &byte, 1) != 1) _exit(97);
      });
      pid_t id = 0;
      if (read(ready[0], &id, sizeof id) != sizeof id) _exit(96);
      std::ifstream status("/proc/self/task/" + std::to_string(id) + "/status");
      int right = 0;
      for (std::string name, value; status >> name >> value; std::getline(status, name)) {
        const bool set = name == "CapInh:" || name == "CapPrm:" || name == "CapEff:";
        const uint64_t allowed = opens ? CAP_TO_MASK(CAP_DAC_OVERRIDE) | CAP_TO_MASK(CAP_FOWNER) : 0;
        right += set && (std::stoull(value, nullptr, 16) & ~allowed) == 0;
        right += (name == "NoNewPrivs:" && value == "1") + (name == "Seccomp:" && value == "2");
      }
      if (write(go_on[1], "x", 1) != 1) _exit(95);
      thread.join();
      if (right != 5) _exit(5);
    });
    INFO(to_string(role));
    CHECK(ended.status == 0);
  }
}

TEST_CASE("sandbox: main writes statistics, whatever the name is") {
  if (skipped()) return;
  const test::TempDir directory;
  REQUIRE(directory.ok());
  REQUIRE(symlink("file", directory.file("link").c_str()) == 0);
  REQUIRE(mkfifo(directory.file("fifo").c_str(), 0600) == 0);
  for (const std::string name : {"file", "link", "./file", "fifo", "/dev/null", "nowhere/file"}) {
    const Ended ended = in_child([&] {
      if (chdir(directory.path().c_str()) != 0 || !Sandbox::switch_on()) _exit(99);
      std::thread([&] {
        if (!Sandbox::confine(ThreadRole::Main)) _exit(98);
        const bool possible = name != "fifo" && name != "nowhere/file";  // nobody reads the FIFO
        for (int round = 0; round < 2; ++round) {
          if (!memory_use("guest")) _exit(6);
          if (write_json_file(name, {{"round", round}}).has_value() != possible) _exit(5);
        }
      }).join();
    });
    INFO(name << ": " << ended.said);
    CHECK(ended.status == 0);
  }
}

TEST_CASE("sandbox: whoever ends the run puts the terminal back") {
  if (skipped()) return;
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(master >= 0);
  REQUIRE(unlockpt(master) == 0);
  const int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
  REQUIRE(slave >= 0);
  termios before{}, after{};
  REQUIRE(tcgetattr(slave, &before) == 0);
  for (const ThreadRole role : kRoles) {
    const Ended ended = in_child([role, slave] {
      if (!Sandbox::switch_on()) _exit(99);
      Terminal::make_raw(slave);
      std::thread([role] {
        if (!Sandbox::confine(role)) _exit(98);
        (void)syscall(SYS_kill, 1, 0);
      }).join();
    });
    INFO(to_string(role) << ": " << ended.said);
    CHECK(ended.status == 1);
    CHECK(ended.said.find(", kill,") != std::string::npos);
    REQUIRE(tcgetattr(slave, &after) == 0);
    CHECK(after.c_lflag == before.c_lflag);
    CHECK(after.c_iflag == before.c_iflag);
  }
  close(slave);
  close(master);
}

TEST_CASE("sandbox: where there are no filters it says so, and what to do") {
  if (skipped()) return;
  const Ended ended = in_child([] {
    const scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(seccomp), 0) != 0 ||
        seccomp_load(filter) != 0)
      _exit(99);
    const auto on = Sandbox::switch_on();
    if (on) _exit(98);
    (void)!write(STDERR_FILENO, on.error()->message().data(), on.error()->message().size());
  });
  CHECK(ended.status == 0);
  CHECK(ended.said.find("sandbox: ") == 0);
  CHECK(ended.said.find("--no-sandbox") != std::string::npos);
}

TEST_CASE("sandbox: nothing is confined until it is switched on") {
  for (const ThreadRole role : kRoles) CHECK(Sandbox::confine(role).has_value());
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0);
  close(fd);
}

}  // namespace spindle::vmm
