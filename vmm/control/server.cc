#include "vmm/control/server.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "vmm/control/address.h"
#include "vmm/sandbox.h"

namespace spindle::vmm {
namespace {

constexpr std::string_view kScheme = "unix:";

Error cannot(int number, const std::string& path, std::string detail = {}) {
  Error error = Error::from_errno(number, "control", path);
  error.detail = std::move(detail);
  return error;
}

/// True if somebody answers at `address`.
bool answered(const sockaddr_un& address) {
  const Fd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return true;  // it cannot be told; leave it alone
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return true;
  return errno != ECONNREFUSED && errno != ENOENT;
}

}  // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::listen(const std::string& where) {
  if (!where.starts_with(kScheme) || where.size() == kScheme.size()) {
    return std::unexpected(Error::invalid("control", where, "give a socket as unix:PATH"));
  }
  const std::string path = where.substr(kScheme.size());
  const auto address = control_address(path);
  if (!address) return std::unexpected(address.error());

  struct stat there {};
  if (lstat(path.c_str(), &there) == 0) {
    if (!S_ISSOCK(there.st_mode))
      return std::unexpected(cannot(EEXIST, path, "it is no socket; choose another path"));
    if (answered(*address))
      return std::unexpected(cannot(EADDRINUSE, path, "another process listens there; choose another path"));
    unlink(path.c_str());
  }
  Fd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return std::unexpected(cannot(errno, path));
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) < 0)
    return std::unexpected(cannot(errno, path, "its directory must exist and be writable"));
  Fd stop(eventfd(0, EFD_CLOEXEC));
  const bool good = stop && stat(path.c_str(), &there) == 0 && ::listen(listener.get(), kMaxClients) == 0;
  if (!good) {
    const int number = errno;
    unlink(path.c_str());
    return std::unexpected(cannot(number, path));
  }
  std::unique_ptr<ControlServer> server(new ControlServer(path, std::move(listener), std::move(stop)));
  server->device_ = there.st_dev;
  server->inode_ = there.st_ino;
  return server;
}

ControlServer::ControlServer(std::string path, Fd listener, Fd stop)
    : path_(std::move(path)), listener_(std::move(listener)), stop_(std::move(stop)) {}

ControlServer::~ControlServer() {
  if (thread_.joinable()) {
    eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  struct stat there {};
  if (lstat(path_.c_str(), &there) == 0 && there.st_dev == device_ && there.st_ino == inode_)
    unlink(path_.c_str());
}

void ControlServer::start(std::string greeting, std::function<std::string(std::string_view)> answer) {
  greeting_ = std::move(greeting);
  answer_ = std::move(answer);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "control");
    confine_or_end(ThreadRole::Control);
    main();
  });
}

void ControlServer::main() {
  constexpr int kPatienceMilliseconds = 1000;
  std::vector<pollfd> fds;
  bool overcrowded = false;  // no descriptors for another client: not asked again for a while
  while (true) {
    fds.clear();
    fds.push_back({stop_.get(), POLLIN, 0});
    fds.push_back({overcrowded ? -1 : listener_.get(), POLLIN, 0});
    for (const Client& client : clients_) {
      // Who owes us the reading of an answer is not asked for more.
      fds.push_back({client.fd.get(), static_cast<short>(client.out.empty() ? POLLIN : POLLOUT), 0});
    }
    if (poll(fds.data(), fds.size(), overcrowded ? kPatienceMilliseconds : -1) < 0) continue;  // EINTR
    overcrowded = false;
    if (fds[0].revents) return;
    size_t next = 2;
    for (Client& client : clients_) {
      const short events = fds[next++].revents;
      if (events & POLLOUT) send_some(client);
      if (events & (POLLIN | POLLHUP | POLLERR)) receive(client);
      serve_lines(client);
    }
    std::erase_if(clients_, [](const Client& client) { return client.dropped; });
    if (fds[1].revents) overcrowded = !accept_client();
  }
}

// False if there are no descriptors or no memory for it; then it waits.
bool ControlServer::accept_client() {
  Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  Client client{.fd = std::move(fd), .in = {}, .out = greeting_};
  if (clients_.size() == kMaxClients) {
    client.out = "{\"error\": {\"class\": \"GenericError\", \"desc\": \"too many control connections\"}}\n";
    send_some(client);
    return true;
  }
  send_some(client);
  clients_.push_back(std::move(client));
  return true;
}

void ControlServer::receive(Client& client) {
  char buffer[4096];
  const ssize_t got = recv(client.fd.get(), buffer, sizeof buffer, 0);
  if (got > 0) {
    client.in.append(buffer, static_cast<size_t>(got));
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    client.dropped = true;
  }
}

void ControlServer::serve_lines(Client& client) {
  while (!client.dropped && client.out.empty()) {
    const size_t end = client.in.find('\n');
    if (end == std::string::npos) break;
    const std::string line = client.in.substr(0, end);
    client.in.erase(0, end + 1);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    client.out = answer_(line);
    send_some(client);
  }
  if (client.in.size() > kMaxLine && client.in.find('\n') == std::string::npos) {
    client.out += "{\"error\": {\"class\": \"GenericError\", \"desc\": \"the line is too long\"}}\n";
    send_some(client);
    client.dropped = true;
  }
}

void ControlServer::send_some(Client& client) {
  while (!client.out.empty()) {
    const ssize_t sent = send(client.fd.get(), client.out.data(), client.out.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) client.dropped = true;
      return;
    }
    client.out.erase(0, static_cast<size_t>(sent));
  }
}

}  // namespace spindle::vmm
