// `spindle ctl`: says one command to a running machine's control socket and prints the answer.
// docs/control.md is the user's page.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "block/parse.h"
#include "tools/command.h"
#include "vmm/control/address.h"
#include "vmm/kvm.h"
#include "vmm/output.h"

namespace spindle::tools {
namespace {

using Json = nlohmann::ordered_json;

struct CtlOptions {
  std::string socket;
  std::string command;
  std::vector<std::string> arguments;
};

int usage_error(const Error& error) {
  vmm::say("spindle ctl: " + error.message());
  return kExitUsage;
}

// As JSON types go: on/off/true/false, a number (size= also with k, M, G or T), else text. Names, of disks
// and of files, are text whatever they look like.
Json value_of(const std::string& name, const std::string& value) {
  static constexpr std::string_view kNames[] = {"device", "id", "file", "filename"};
  if (std::ranges::find(kNames, std::string_view(name)) != std::end(kNames)) return value;
  if (value == "on" || value == "true") return true;
  if (value == "off" || value == "false") return false;
  if (const auto number = name == "size" ? parse_size(value) : parse_number(value)) return *number;
  return value;
}

Result<Json> parse_arguments(const std::vector<std::string>& words) {
  Json arguments = Json::object();
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      return std::unexpected(Error::invalid("argument", word, "write arguments as name=value"));
    }
    const std::string name = word.substr(0, equals);
    arguments[name] = value_of(name, word.substr(equals + 1));
  }
  return arguments;
}

Result<vmm::Fd> connect_to(std::string path) {
  if (path.starts_with("unix:")) path.erase(0, 5);
  const auto address = vmm::control_address(path);
  if (!address) return std::unexpected(address.error());
  vmm::Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) < 0) {
    Error error = Error::from_errno(errno, "connect", path);
    error.detail = "is `spindle run --control unix:" + path + "` running?";
    return std::unexpected(std::move(error));
  }
  return fd;
}

Result<> send_all(const vmm::Fd& fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return std::unexpected(Error::from_errno(errno, "send", ""));
    text.remove_prefix(static_cast<size_t>(sent));
  }
  return {};
}

// The next line, as JSON. `rest` keeps what came behind it.
Result<Json> receive(const vmm::Fd& fd, std::string& rest) {
  size_t end;
  while ((end = rest.find('\n')) == std::string::npos) {
    char buffer[4096];
    const ssize_t got = recv(fd.get(), buffer, sizeof buffer, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::unexpected(Error::from_errno(errno, "receive", ""));
    if (got == 0)
      return std::unexpected(Error{.operation = "receive", .detail = "the machine ended the connection"});
    rest.append(buffer, static_cast<size_t>(got));
  }
  Json json = Json::parse(rest.substr(0, end), nullptr, /*allow_exceptions=*/false);
  rest.erase(0, end + 1);
  if (!json.is_object())
    return std::unexpected(Error{.operation = "receive", .detail = "what answers there is no spindle"});
  return json;
}

int control(const CtlOptions& given) {
  auto arguments = parse_arguments(given.arguments);
  if (!arguments) return usage_error(*arguments.error());
  auto fd = connect_to(given.socket);
  if (!fd) return usage_error(*fd.error());
  std::string rest;
  auto answer = receive(*fd, rest);  // the greeting
  if (answer && answer->contains("QMP")) {
    const Json request{{"execute", given.command}, {"arguments", std::move(*arguments)}};
    auto sent = send_all(*fd, request.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    answer = sent ? receive(*fd, rest) : Result<Json>(std::unexpected(std::move(sent.error())));
  }
  if (!answer) {
    vmm::say("spindle ctl: " + answer.error()->message());
    return kExitFailed;
  }
  if (const auto error = answer->find("error"); error != answer->end()) {
    vmm::say("spindle ctl: " + (error->is_object() ? error->value("desc", error->dump()) : error->dump()));
    return kExitFailed;
  }
  const Json& result = answer->contains("return") ? answer->at("return") : *answer;
  if (result != Json::object())
    fmt::print("{}\n", result.dump(2, ' ', false, Json::error_handler_t::replace));
  return kExitOk;
}

}  // namespace

void add_ctl_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<CtlOptions>();
  CLI::App* command = app.add_subcommand("ctl", "Say a command to a running machine");
  command->add_option("socket", options->socket, "the socket given to `spindle run --control unix:SOCK`")
      ->required()
      ->type_name("SOCK");
  command->add_option("command", options->command, "query-status, stop, cont, ...; query-commands lists them")
      ->required()
      ->type_name("COMMAND");
  command->add_option("arguments", options->arguments, "name=value; on and off are truth values")
      ->type_name("ARGUMENT");
  command->footer(
      "Exit status: 0 done, the answer is printed as JSON; 1 the machine refused; 2 it could not be asked.");
  command->callback([options, &action] { action = [options] { return control(*options); }; });
}

}  // namespace spindle::tools
