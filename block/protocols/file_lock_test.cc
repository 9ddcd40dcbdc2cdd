// Locking against the real QEMU tools, both ways. A lock belongs to the open file, so our own second open
// conflicts as another process would.
#include "block/protocols/file_lock.h"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <csignal>

#include "block/protocols/file_node.h"
#include "block/test_support/environment.h"

namespace spindle {
namespace {

using test::have_program;
using test::run_command;
using test::skipped;
using test::TempDir;

struct Bench {
  std::unique_ptr<Reactor> reactor = std::move(*Reactor::create());
  TempDir dir;
  std::string path = dir.file("disk,image", 1 << 20);

  Result<std::shared_ptr<FileNode>> open(bool read_only, LockPolicy locking = LockPolicy::On,
                                         bool grows = false) {
    return FileNode::open(*reactor,
                          {.path = path, .read_only = read_only, .grows = grows, .locking = locking});
  }
};

// qemu-io with the image open, waiting for its next command, until this object goes away.
class QemuIo {
 public:
  QemuIo(const std::string& path, const std::string& options) {
    int to[2], from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) return;
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(to[0], 0);
      ::dup2(from[1], 1);
      ::dup2(from[1], 2);
      ::execl("/bin/sh", "sh", "-c", ("exec qemu-io -f raw " + options + " '" + path + "'").c_str(), nullptr);
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    in_ = to[1];
    out_ = from[0];
    // It has opened and locked the image once it prompts.
    char byte;
    while (::read(out_, &byte, 1) == 1) {
      output_ += byte;
      if (output_.ends_with("qemu-io> ")) {
        opened_ = true;
        break;
      }
    }
  }
  ~QemuIo() {
    if (in_ >= 0) ::close(in_);  // end of input ends it
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    if (out_ >= 0) ::close(out_);
  }
  bool opened() const { return opened_; }
  const std::string& output() const { return output_; }

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  bool opened_ = false;
  std::string output_;
};

TEST_CASE("lock: one writer, or any number of readers") {
  Bench bench;
  {
    auto writer = bench.open(false);
    REQUIRE(writer.has_value());
    auto second = bench.open(false);
    REQUIRE(!second.has_value());
    CHECK(second.error()->kind == ErrorKind::InUse);
    CHECK(second.error()->message().find(bench.path) != std::string::npos);
    CHECK(second.error()->message().find("in use") != std::string::npos);
    CHECK(second.error()->message().find("locking=off") != std::string::npos);
    CHECK(bench.open(true).error()->kind == ErrorKind::InUse);
    CHECK(bench.open(false, LockPolicy::Off).has_value());
  }
  {
    auto reader = bench.open(true);
    REQUIRE(reader.has_value());
    CHECK(bench.open(true).has_value());
    CHECK(bench.open(false).error()->kind == ErrorKind::InUse);
    // A refused open leaves no lock behind.
    CHECK(bench.open(true).has_value());
  }
  CHECK(bench.open(false).has_value());
}

TEST_CASE("lock: close lets go, and a format that grows its file excludes a plain writer") {
  Bench bench;
  auto grower = bench.open(false, LockPolicy::On, true);
  REQUIRE(grower.has_value());
  CHECK(bench.open(false).error()->kind == ErrorKind::InUse);
  CHECK(bench.reactor->wait((*grower)->close()).has_value());
  CHECK(bench.open(false, LockPolicy::On, true).has_value());
}

TEST_CASE("lock: exactly the bytes that QEMU takes for a guest's disk") {
  CHECK(lock_bits(false, false).used == 0b0011);
  CHECK(lock_bits(false, false).unshared == 0b0010);
  CHECK(lock_bits(true, false).used == 0b0001);
  CHECK(lock_bits(true, false).unshared == 0b0010);
  CHECK(lock_bits(false, true).used == 0b1011);
  CHECK(lock_bits(false, true).unshared == 0b1010);
}

TEST_CASE("lock: qemu-io and qemu-img see ours in use") {
  if (!have_program("qemu-io") || !have_program("qemu-img")) return skipped("qemu-utils is not installed");
  Bench bench;
  const std::string quoted = "'" + bench.path + "'";
  {
    auto writer = bench.open(false);
    REQUIRE(writer.has_value());
    const auto write = run_command("qemu-io -f raw -c 'write 0 512' " + quoted);
    CHECK(write.status != 0);
    CHECK_MESSAGE(write.output.find("lock") != std::string::npos, write.output);
    CHECK(run_command("qemu-img resize -f raw " + quoted + " 2M").status != 0);
    const auto shared = run_command("qemu-img info -U -f raw " + quoted);
    CHECK_MESSAGE(shared.status == 0, shared.output);
  }
  {
    auto reader = bench.open(true);
    REQUIRE(reader.has_value());
    CHECK(run_command("qemu-io -f raw -c 'write 0 512' " + quoted).status != 0);
    CHECK(run_command("qemu-io -r -f raw -c 'read 0 512' " + quoted).status == 0);
    CHECK(run_command("qemu-img info -f raw " + quoted).status == 0);
  }
  CHECK(run_command("qemu-io -f raw -c 'write 0 512' " + quoted).status == 0);
}

TEST_CASE("lock: we see qemu-io's in use") {
  if (!have_program("qemu-io")) return skipped("qemu-utils is not installed");
  Bench bench;
  {
    QemuIo writer(bench.path, "");
    REQUIRE_MESSAGE(writer.opened(), writer.output());
    CHECK(bench.open(false).error()->kind == ErrorKind::InUse);
    CHECK(bench.open(true).error()->kind == ErrorKind::InUse);
    CHECK(bench.open(false, LockPolicy::Auto).error()->kind == ErrorKind::InUse);
    CHECK(bench.open(false, LockPolicy::Off).has_value());
  }
  {
    QemuIo reader(bench.path, "-r");
    REQUIRE_MESSAGE(reader.opened(), reader.output());
    CHECK(bench.open(true).has_value());
  }
  CHECK(bench.open(false).has_value());
}

TEST_CASE("lock: where there are no locks, auto warns and goes on, on fails, off is silent") {
  // A pipe has no OFD locks that could be taken: fcntl answers EINVAL or EBADF, as 9p and others do.
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC | O_DIRECT) == 0);
  ::close(ends[0]);
  int warnings = 0;
  const auto warn = [&](std::string line) {
    CHECK(line.find("no OFD locks") != std::string::npos);
    ++warnings;
  };
  // The write end may not take read locks.
  CHECK(lock_image(ends[1], "image", lock_bits(false, false), LockPolicy::Auto, warn).has_value());
  CHECK(warnings == 1);
  auto on = lock_image(ends[1], "image", lock_bits(false, false), LockPolicy::On, warn);
  REQUIRE(!on.has_value());
  CHECK(on.error()->kind == ErrorKind::NotSupported);
  CHECK(lock_image(ends[1], "image", lock_bits(false, false), LockPolicy::Off, warn).has_value());
  CHECK(warnings == 1);
  ::close(ends[1]);
}

}  // namespace
}  // namespace spindle
