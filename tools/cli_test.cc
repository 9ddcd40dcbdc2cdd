// The command line from outside: each error is one line that names what is wrong, and exits with 2.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "block/test_support/environment.h"

namespace spindle {
namespace {

test::Command spindle(const std::string& arguments) {
  return test::run_command("'" SPINDLE_BINARY "' " + arguments + " </dev/null");
}

void refused(const std::string& arguments, const std::string& word) {
  const test::Command run = spindle(arguments);
  INFO(arguments << " -> " << run.output);
  CHECK(run.status == 2);
  CHECK(std::ranges::count(run.output, '\n') == 1);
  CHECK(run.output.find(word) != std::string::npos);
}

// What `spindle ctl` sends to a machine that answers everything.
std::string sent_by_ctl(const std::string& command) {
  const test::TempDir directory;
  REQUIRE(directory.ok());
  const std::string path = directory.file("control");
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(listener, 1) == 0);
  std::string line;
  std::thread machine([&] {
    const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    const std::string_view greeting = "{\"QMP\": {}}\n", answer = "{\"return\": {}}\n";
    bool good = send(client, greeting.data(), greeting.size(), MSG_NOSIGNAL) > 0;
    for (char byte = 0; good && byte != '\n';) {
      good = recv(client, &byte, 1, 0) == 1;
      if (good && byte != '\n') line += byte;
    }
    if (good) good = send(client, answer.data(), answer.size(), MSG_NOSIGNAL) > 0;
    close(client);
  });
  CHECK(spindle("ctl '" + path + "' " + command).status == 0);
  shutdown(listener, SHUT_RDWR);  // whoever still waits for a client
  machine.join();
  close(listener);
  return line;
}

}  // namespace

TEST_CASE("cli: ctl sends values as what they are, and a disk's name as text") {
  CHECK(sent_by_ctl("block_resize device=disk0 size=2G") ==
        R"({"execute":"block_resize","arguments":{"device":"disk0","size":2147483648}})");
  CHECK(sent_by_ctl("block_set_write_cache device=5 writeback=off") ==
        R"({"execute":"block_set_write_cache","arguments":{"device":"5","writeback":false}})");
  CHECK(sent_by_ctl("block_set_write_cache device=on writeback=on") ==
        R"({"execute":"block_set_write_cache","arguments":{"device":"on","writeback":true}})");
}

TEST_CASE("cli: help and version") {
  CHECK(spindle("--version").output.starts_with("spindle "));
  CHECK(spindle("--version").status == 0);
  const test::Command help = spindle("run --help");
  CHECK(help.status == 0);
  for (const char* option : {"--kernel", "--initrd", "--append", "--cpus", "--memory", "--disk", "--console",
                             "--stats-json", "--control", "--no-reboot", "--no-sandbox"}) {
    CHECK(help.output.find(option) != std::string::npos);
  }
}

TEST_CASE("cli: what cannot be printed is no success") {
  const test::TempDir directory;
  REQUIRE(directory.ok());
  const auto into_full = [](const std::string& arguments) {
    return test::run_command("{ '" SPINDLE_BINARY "' " + arguments + " </dev/null >/dev/full; }");
  };
  const auto lost = [&](const std::string& arguments, int status) {
    const test::Command full = into_full(arguments);
    INFO(arguments << " -> " << full.output);
    CHECK(full.status == status);
    CHECK(std::ranges::count(full.output, '\n') == 1);
    CHECK(full.output.find("write the output") != std::string::npos);
  };
  for (const char* arguments :
       {"--help", "--version", "run --help", "crash explore --help", "crash explore --states 20 --steps 5",
        "crash table --states 40 --steps 5 --qemu 0"})
    lost(arguments, 2);
  for (const char* arguments : {"img --help", "img create --help", "io --help"}) lost(arguments, 1);
  // With nothing to deliver there is nothing to fail.
  CHECK(into_full("img create -q '" + directory.file("a.raw") + "' 1M").status == 0);
}

TEST_CASE("cli: user errors are one line and status 2") {
  const test::TempDir directory;
  REQUIRE(directory.ok());
  const std::string kernel = directory.file("kernel");
  std::ofstream(kernel) << "no kernel at all";
  const std::string run = "run --kernel '" + kernel + "' ";
  refused("", "subcommand");
  refused("walk", "walk");
  refused("run", "--kernel");
  refused(run + "--frobnicate", "frobnicate");
  refused(run + "--cpus 0", "1 to 8");
  refused(run + "--cpus 9", "1 to 8");
  refused(run + "--cpus many", "many");
  refused(run + "--cpus many", "1 to 8");
  refused(run + "--cpus ''", "cpus");
  refused(run + "--memory 0x10", "64M");  // a bare number, so MiB
  refused(run + "--memory 1M", "64M");
  refused(run + "--memory 99999999G", "too much");
  refused(run + "--memory 3000G", "1T");
  refused(run + "--memory lots", "lots");
  refused(run + "--memory 0", "64M");
  refused(run + "--console tty", "stdio, none or file:F");
  refused("ctl", "socket");
  refused("ctl /nonexistent/socket", "command");
  refused("ctl /nonexistent/socket stop", "/nonexistent/socket");
  refused("ctl /nonexistent/socket stop now", "name=value");
  refused("ctl '" + kernel + "' stop", kernel);
  refused("crash", "subcommand");
  refused("crash export", "LOG");
  refused("crash export '" + kernel + "' '" + directory.file("out") + "'", kernel);
  refused("crash export /nonexistent/log '" + directory.file("out") + "'", "/nonexistent/log");
  refused(run + "--disk file=" + kernel + ",record=/nonexistent/log", "/nonexistent/log");
  refused("run --kernel /nonexistent/vmlinuz", "/nonexistent/vmlinuz");
  refused("run --kernel /", "kernel /");
  refused(run + "--initrd /nonexistent/initrd", "/nonexistent/initrd");
  refused(run + "--disk file=x,if=floppy", "floppy");
  refused(run + "--disk file=x,colour=blue", "colour");
  refused(run + "--disk file=x,format=tar", "tar");
  for (const char* stops : {"werror=stop", "werror=enospc", "rerror=stop"})
    refused(run + "--disk file=x," + stops, "--control");
  refused(run + "--disk file=x --disk file=y,cache=fast", "--disk file=y,cache=fast");  // which of them
  refused(run + "--disk file=x,if=ide,bus=0,unit=0 --disk file=y,if=ide,bus=0,unit=0",
          "unit 0 has a disk already");
  refused(run +
              "--disk file=a,if=ide --disk file=b,if=ide --disk file=c,if=ide --disk file=d,if=ide --disk "
              "file=e,if=ide",
          "disk e");
  refused(run + "--stats-json /nonexistent/stats.json", "/nonexistent/stats.json");
  refused(run + "--stats-json '" + directory.path() + "'", directory.path());
}

TEST_CASE("cli: without /dev/kvm the message says what to do") {
  if (access("/dev/kvm", F_OK) == 0) return test::skipped("there is a /dev/kvm");
  refused("run --kernel '" SPINDLE_BINARY "'", "with-kvm");
}

TEST_CASE("crash explore, table and replay: refusals are one line, results have exit statuses") {
  const test::TempDir directory;
  refused("crash explore --format nix", "there are");
  refused("crash explore --workload nix", "nix");
  refused("crash explore -o colour", "KEY=VALUE");
  refused("crash explore -o colour=blue", "colour");
  refused("crash explore --states 0", "states");
  refused("crash explore --log '" + directory.file("missing") + "'", "missing");
  refused("crash explore --workload random --log x", "--log");
  refused("crash replay '" + directory.file("missing") + "'", "missing");

  const std::string json = directory.file("out.json"), kept = directory.file("kept");
  const test::Command clean = spindle("crash explore --workload fua --states 2000 --json '" + json + "'");
  INFO(clean.output);
  CHECK(clean.status == 0);
  CHECK(clean.output.find("flushed-is-durable") != std::string::npos);
  CHECK(std::filesystem::file_size(json) > 100);

  const test::Command bad = spindle(
      "crash explore --format vdi -o metadata-flush=none,block_size=4096 --workload sequential --states 2000 "
      "--keep-bad '" +
      kept + "'");
  INFO(bad.output);
  CHECK(bad.status == 1);
  CHECK(bad.output.find("check-error") != std::string::npos);
  int replayed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kept)) {
    const test::Command again = spindle("crash replay '" + entry.path().string() + "'");
    INFO(again.output);
    CHECK(again.status == 1);
    CHECK(again.output.find("there") != std::string::npos);
    CHECK(again.output.find("Now: ") != std::string::npos);
    ++replayed;
  }
  CHECK(replayed > 0);

  const test::Command table = spindle("crash table --states 4000 --qemu 0");
  INFO(table.output);
  CHECK(table.status == 0);
  for (const char* word : {"raw", "ordered", "eager", "none", "writethrough", "distinct states in all"})
    CHECK(table.output.find(word) != std::string::npos);
}

}  // namespace spindle
