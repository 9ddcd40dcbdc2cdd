// `spindle io`: single reads, writes, discards and flushes, as qemu-io does. docs/io.md is the user's page.
#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

#include "image/io_shell.h"
#include "image/output.h"
#include "tools/image_tool.h"

namespace spindle::tools {
namespace {

constexpr const char* kCommand = "io";

struct Options {
  ImageArguments image;
  std::vector<std::string> commands;
  std::string cache;
  std::string discard = "unmap";
  bool read_only = false;
  bool no_cache = false;
};

// One line each from standard input; a prompt before each, as qemu-io shows it.
void run_input(image::IoShell& shell) {
  std::string line;
  while (true) {
    if (isatty(STDIN_FILENO) == 1) {
      fmt::print("spindle io> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line)) return;
    if (shell.run(line) == image::IoShell::Outcome::Quit) return;
  }
}

int run_io(const Options& given, const image::Workshop& shop) {
  image::OpenMode mode{.write = !given.read_only,
                       .force_share = given.image.force_share,
                       .unmap = given.discard != "ignore" && given.discard != "off",
                       .drop_cache = !given.read_only};
  if (given.no_cache) mode.cache = CacheMode::None;
  if (!given.cache.empty()) {
    const auto cache = image::cache_mode_of("-t", given.cache);
    if (!cache) return tool_failed(kCommand, *cache.error());
    mode.cache = *cache;
  }
  if (given.discard != "unmap" && given.discard != "on" && given.discard != "ignore" &&
      given.discard != "off")
    return tool_failed(kCommand, Error::invalid("-d", given.discard, "it must be unmap or ignore"));
  std::unique_ptr<Disk> disk;
  if (!given.image.file.empty()) {
    auto opened = shop.reactor.wait(image::open_image(shop, given.image.name(), mode));
    if (!opened) return open_failed(kCommand, given.image.file, *opened.error());
    disk = std::move(*opened);
  }
  const auto printer = [](std::FILE* stream) {
    return [stream](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stream);
      std::fflush(stream);
    };
  };
  image::IoShell shell(shop.reactor, disk.get(), printer(stdout), printer(stderr));
  for (const std::string& command : given.commands) {
    if (shell.run(command) == image::IoShell::Outcome::Quit) break;
  }
  if (given.commands.empty()) run_input(shell);
  int status = shell.failed() ? kExitFailed : kExitOk;
  if (disk) {
    const auto closed = shop.reactor.wait(disk->close());
    if (!closed) status = tool_failed(kCommand, *closed.error());
  }
  const auto printed = image::output_state();
  return printed ? status : tool_failed(kCommand, *printed.error());
}

}  // namespace

void add_io_command(CLI::App& app, Action& action) {
  fill_io_command(*app.add_subcommand("io", "Read and write an image by hand, as qemu-io does"), action);
}

void fill_io_command(CLI::App& io, Action& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = &io;
  add_image_arguments(*command, options->image, true);
  command->get_option("FILE")->required(false);
  command
      ->add_option(
          "-c,--cmd", options->commands,
          "A command; may be given several times. Without it they are read from standard input, one a "
          "line; `help` lists them")
      ->type_name("COMMAND")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  command->add_flag("-r,--read-only", options->read_only, "Open it for reading only");
  command->add_option("-t,--cache", options->cache, "The cache mode, writeback if not given")
      ->type_name("MODE");
  command->add_flag("-n,--nocache", options->no_cache, "The same as -t none");
  command->add_option("-d,--discard", options->discard, "unmap, or ignore discards")->capture_default_str();
  command->footer("Exit status: 0 all commands succeeded, 1 one failed or there was something wrong.");
  command->callback([options, &action] {
    action = [options] {
      return run_image_tool(kCommand, false,
                            [&](const image::Workshop& shop) { return run_io(*options, shop); });
    };
  });
}

}  // namespace spindle::tools
