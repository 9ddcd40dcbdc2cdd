// The command line from outside: each error is one line that names what is wrong, and exits with 2.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

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

}  // namespace

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

}  // namespace spindle
