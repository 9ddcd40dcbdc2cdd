// The control socket: real sockets, a protocol that only echoes.
#include "vmm/control/server.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <fstream>
#include <vector>

#include "block/test_support/environment.h"

namespace spindle::vmm {
namespace {

class TestClient {
 public:
  explicit TestClient(const std::string& path) : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};  // a hanging test ends
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    connected_ = connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  bool connected() const { return connected_; }
  void say(std::string_view text) const {
    CHECK(send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
  }
  /// What comes up to the next newline; what came so far if the connection ends.
  std::string hear() {
    for (;;) {
      const size_t end = got_.find('\n');
      if (end != std::string::npos) {
        std::string line = got_.substr(0, end);
        got_.erase(0, end + 1);
        return line;
      }
      char buffer[8192];
      const ssize_t count = recv(fd_.get(), buffer, sizeof buffer, 0);
      if (count <= 0) return std::exchange(got_, {}) + "<end>";
      got_.append(buffer, static_cast<size_t>(count));
    }
  }
  bool readable(int milliseconds) const {
    pollfd waiting{fd_.get(), POLLIN, 0};
    return poll(&waiting, 1, milliseconds) == 1;
  }
  void finish_sending() const { shutdown(fd_.get(), SHUT_WR); }

 private:
  Fd fd_;
  bool connected_ = false;
  std::string got_;
};

std::unique_ptr<ControlServer> serve(const std::string& path) {
  auto server = ControlServer::listen("unix:" + path);
  if (!server) FAIL(server.error()->message());
  (*server)->start("hello\n", [](std::string_view line) { return "<" + std::string(line) + ">\n"; });
  return std::move(*server);
}

bool exists(const std::string& path) {
  struct stat there {};
  return lstat(path.c_str(), &there) == 0;
}

}  // namespace

TEST_CASE("control socket: lines in, lines out, for several clients") {
  const test::TempDir directory;
  const std::string path = directory.file("control");
  auto server = serve(path);
  TestClient first(path), second(path);
  REQUIRE(first.connected());
  CHECK(first.hear() == "hello");
  first.say("one\ntwo\n\n  \nthr");
  CHECK(first.hear() == "<one>");
  CHECK(first.hear() == "<two>");
  CHECK(second.hear() == "hello");
  second.say("alone\n");
  CHECK(second.hear() == "<alone>");
  first.say("ee\n");
  CHECK(first.hear() == "<three>");
  first.say("last\n");
  first.finish_sending();
  CHECK(first.hear() == "<last>");
  CHECK(first.hear() == "<end>");
  server.reset();
  CHECK(second.hear() == "<end>");
  CHECK(!exists(path));
}

TEST_CASE("control socket: a client that breaks a bound is told and dropped, and the others go on") {
  const test::TempDir directory;
  const std::string path = directory.file("control");
  auto server = serve(path);
  TestClient good(path);
  CHECK(good.hear() == "hello");
  {
    TestClient endless(path);
    CHECK(endless.hear() == "hello");
    endless.say(std::string(ControlServer::kMaxLine + 1, 'x'));
    CHECK(endless.hear().find("too long") != std::string::npos);
    CHECK(endless.hear() == "<end>");
  }
  std::vector<std::unique_ptr<TestClient>> crowd;
  for (size_t i = 1; i < ControlServer::kMaxClients; ++i) {
    crowd.push_back(std::make_unique<TestClient>(path));
    CHECK(crowd.back()->hear() == "hello");
  }
  TestClient one_too_many(path);
  CHECK(one_too_many.hear().find("too many") != std::string::npos);
  CHECK(one_too_many.hear() == "<end>");
  good.say("still here\n");
  CHECK(good.hear() == "<still here>");
}

TEST_CASE("control socket: who does not read answers is not served further") {
  const test::TempDir directory;
  const std::string path = directory.file("control");
  std::atomic<unsigned> served = 0;
  auto server = std::move(*ControlServer::listen("unix:" + path));
  server->start("", [&served](std::string_view) {
    ++served;
    return std::string(32 << 10, 'a') + "\n";
  });
  TestClient lazy(path), eager(path);
  constexpr unsigned kAsked = 1000;  // 32 MiB of answers
  std::string requests;
  for (unsigned i = 0; i < kAsked; ++i) requests += "x\n";
  lazy.say(requests);
  eager.say("x\n");
  CHECK(eager.hear().size() == 32 << 10);
  CHECK(served < kAsked);
  for (unsigned i = 0; i < kAsked; ++i) CHECK(lazy.hear().size() == 32 << 10);
  CHECK(served == kAsked + 1);
}

TEST_CASE("control socket: without descriptors for a client it waits, and does not spin") {
  const test::TempDir directory;
  const std::string path = directory.file("control");
  auto server = serve(path);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{std::min<rlim_t>(before.rlim_cur, 64), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::vector<Fd> fillers;
  while (Fd fd{open("/dev/null", O_RDONLY | O_CLOEXEC)}) fillers.push_back(std::move(fd));
  fillers.pop_back();  // for the client's own end
  {
    TestClient client(path);
    REQUIRE(client.connected());
    const auto used = std::clock();
    CHECK_FALSE(client.readable(500));
    CHECK(std::clock() - used < CLOCKS_PER_SEC / 4);
    fillers.clear();
    CHECK(client.hear() == "hello");
  }
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("control socket: where it may and may not be") {
  const test::TempDir directory;
  const auto refusal = [](const std::string& where) {
    auto server = ControlServer::listen(where);
    return server ? std::string("accepted") : server.error()->message();
  };
  CHECK(refusal("tcp:1234").find("unix:PATH") != std::string::npos);
  CHECK(refusal("unix:").find("unix:PATH") != std::string::npos);
  CHECK(refusal("unix:/tmp/" + std::string(200, 'x')).find("1 to 107") != std::string::npos);
  CHECK(refusal("unix:" + directory.file("none/control")).find("directory must exist") != std::string::npos);

  const std::string file = directory.file("precious");
  std::ofstream(file) << "data";
  CHECK(refusal("unix:" + file).find("no socket") != std::string::npos);
  CHECK(exists(file));

  const std::string path = directory.file("control");
  {
    auto server = serve(path);
    CHECK(refusal("unix:" + path).find("another process listens") != std::string::npos);
    TestClient still(path);
    CHECK(still.hear() == "hello");
    // Who has put something else there in between keeps it.
    unlink(path.c_str());
    std::ofstream(path) << "data";
  }
  CHECK(exists(path));
  unlink(path.c_str());

  // What a killed monitor leaves behind does not stand in the way.
  {
    const Fd dead(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    REQUIRE(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  auto server = serve(path);
  TestClient client(path);
  CHECK(client.hear() == "hello");
}

}  // namespace spindle::vmm
