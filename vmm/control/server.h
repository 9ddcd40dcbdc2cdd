// ControlServer: a Unix socket on which clients send lines and get lines back. It knows nothing of what they
// mean.
//
// Clients are served one request after the other, by a thread of their own. Everything from a client is
// bounded: a line, how many clients there are, and what waits to be sent (a client that does not read its
// answers is not listened to until it does). A client that breaks a bound is told why and dropped; the others
// notice nothing.
#pragma once

#include <sys/types.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "block/result.h"
#include "vmm/kvm.h"

namespace spindle::vmm {

class ControlServer {
 public:
  static constexpr std::size_t kMaxLine = 64 << 10;
  static constexpr std::size_t kMaxClients = 16;

  /// Listens. `where` is "unix:PATH". A socket that a dead process has left at PATH is replaced; anything
  /// else there is an error.
  static Result<std::unique_ptr<ControlServer>> listen(const std::string& where);
  /// Sends what can be sent without waiting, closes all and removes the socket.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  /// From here on clients are served: each gets `greeting`, and `answer(line)` for each line. Once.
  void start(std::string greeting, std::function<std::string(std::string_view line)> answer);

 private:
  struct Client {
    Fd fd;
    std::string in;   // not yet a whole line
    std::string out;  // not yet sent
    bool dropped = false;
  };

  ControlServer(std::string path, Fd listener, Fd stop);
  void main();
  bool accept_client();
  void receive(Client& client);
  void serve_lines(Client& client);
  static void send_some(Client& client);

  std::string path_;
  dev_t device_ = 0;  // of the socket we made, so that no other is removed at the end
  ino_t inode_ = 0;
  Fd listener_;
  Fd stop_;
  std::string greeting_;
  std::function<std::string(std::string_view)> answer_;
  std::list<Client> clients_;
  std::thread thread_;
};

}  // namespace spindle::vmm
