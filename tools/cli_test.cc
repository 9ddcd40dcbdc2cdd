// The command line from outside: each error is one line that names what is wrong, and exits with 2.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

struct Run {
  int status;
  std::string output;  // stdout and stderr
};

Run spindle(const std::string& arguments) {
  FILE* pipe = popen((SPINDLE_BINARY " " + arguments + " 2>&1 </dev/null").c_str(), "r");
  REQUIRE(pipe);
  Run run{};
  char buffer[4096];
  while (const size_t got = fread(buffer, 1, sizeof buffer, pipe)) run.output.append(buffer, got);
  run.status = WEXITSTATUS(pclose(pipe));
  return run;
}

void refused(const std::string& arguments, const std::string& word) {
  const Run run = spindle(arguments);
  INFO(arguments << " -> " << run.output);
  CHECK(run.status == 2);
  CHECK(std::ranges::count(run.output, '\n') == 1);
  CHECK(run.output.find(word) != std::string::npos);
}

}  // namespace

TEST_CASE("cli: help and version") {
  CHECK(spindle("--version").output.starts_with("spindle "));
  CHECK(spindle("--version").status == 0);
  const Run help = spindle("run --help");
  CHECK(help.status == 0);
  for (const char* option : {"--kernel", "--initrd", "--append", "--cpus", "--memory", "--disk", "--console",
                             "--stats-json", "--no-reboot"}) {
    CHECK(help.output.find(option) != std::string::npos);
  }
}

TEST_CASE("cli: user errors are one line and status 2") {
  const std::string kernel = std::filesystem::temp_directory_path() / "spindle-cli-test-kernel";
  std::ofstream(kernel) << "no kernel at all";
  const std::string run = "run --kernel " + kernel + " ";
  refused("", "subcommand");
  refused("walk", "walk");
  refused("run", "--kernel");
  refused(run + "--frobnicate", "frobnicate");
  refused(run + "--cpus 0", "1 to 8");
  refused(run + "--cpus 9", "1 to 8");
  refused(run + "--cpus many", "many");
  refused(run + "--memory 1M", "64M");
  refused(run + "--memory 99999999G", "too much");
  refused(run + "--memory 3000G", "1T");
  refused(run + "--memory lots", "lots");
  refused(run + "--memory 0", "64M");
  refused(run + "--console tty", "stdio, none or file:F");
  refused("run --kernel /nonexistent/vmlinuz", "/nonexistent/vmlinuz");
  refused("run --kernel /", "kernel /");
  refused(run + "--initrd /nonexistent/initrd", "/nonexistent/initrd");
  refused(run + "--disk file=x,if=floppy", "floppy");
  refused(run + "--disk file=x,colour=blue", "colour");
  refused(run + "--disk file=x,format=tar", "tar");
  refused(run + "--disk file=x,if=ide,bus=0,unit=0 --disk file=y,if=ide,bus=0,unit=0",
          "unit 0 has a disk already");
  refused(run +
              "--disk file=a,if=ide --disk file=b,if=ide --disk file=c,if=ide --disk file=d,if=ide --disk "
              "file=e,if=ide",
          "disk e");
  std::filesystem::remove(kernel);
}

TEST_CASE("cli: without /dev/kvm the message says what to do") {
  if (access("/dev/kvm", F_OK) == 0) return;
  refused("run --kernel " SPINDLE_BINARY, "with-kvm");
}
