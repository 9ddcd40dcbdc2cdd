#include "image/io_shell.h"

#include <fmt/format.h>

#include <algorithm>

#include "image/io_command.h"

namespace spindle::image {

const std::vector<IoShell::Command>& IoShell::commands() {
  static const std::vector<Command> table = {
      {"alloc", "", "", 1, 2, true, "offset [count]", "checks if offset is allocated in the file",
       &IoShell::alloc},
      {"discard", "d", "Cq", 2, 2, true, "[-Cq] off len", "discards a number of bytes at a specified offset",
       &IoShell::discard},
      {"flush", "f", "", 0, 0, true, "", "flush all in-core file state to disk", &IoShell::flush},
      {"help", "?", "", 0, 1, false, "[command]", "help for one or all commands", &IoShell::help},
      {"info", "i", "", 0, 0, true, "", "prints information about the current file", &IoShell::info},
      {"length", "l", "", 0, 0, true, "", "gets the length of the current file", &IoShell::length},
      {"map", "", "", 0, 0, true, "", "prints the allocated areas of a file", &IoShell::map},
      {"quit", "q", "", 0, 0, false, "", "exit the program", nullptr},
      {"read", "r", "Cpqvl:P:s:", 2, 2, true, "[-Cqv] [-P pattern [-s off] [-l len]] off len",
       "reads a number of bytes at a specified offset", &IoShell::read},
      {"write", "w", "Cfnpquzs:P:", 2, 2, true, "[-Cfnquz] [-P pattern | -s source_file] off len",
       "writes a number of bytes at a specified offset", &IoShell::write},
  };
  return table;
}

const IoShell::Command* IoShell::find(std::string_view name) {
  const auto found = std::ranges::find_if(commands(), [&](const Command& command) {
    return name == command.name || (command.alias[0] != '\0' && name == command.alias);
  });
  return found == commands().end() ? nullptr : &*found;
}

bool IoShell::say(std::string_view line) {
  print_(std::string(line) + "\n");
  return false;
}

bool IoShell::blame(std::string_view line) {
  complain_(std::string(line) + "\n");
  return false;
}

bool IoShell::help(const IoArguments& arguments) {
  const auto line = [](const Command& command) {
    return fmt::format("{}{}{} -- {}", command.name, command.usage[0] == '\0' ? "" : " ", command.usage,
                       command.summary);
  };
  if (!arguments.rest.empty()) {
    const Command* command = find(arguments.rest[0]);
    if (!command) return say(fmt::format("command {} not found", arguments.rest[0]));
    say(line(*command));
    return true;
  }
  for (const Command& command : commands()) say(line(command));
  say("\nUse 'help commandname' for extended help.");
  return true;
}

IoShell::Outcome IoShell::run(std::string_view line) {
  const auto words = split_words(line);
  if (words.empty()) return Outcome::Done;
  const auto carry_out = [&] {
    const Command* command = find(words[0]);
    if (!command) return blame(fmt::format("command \"{}\" not found", words[0]));
    if (command->needs_image && !disk_) return blame("no file open, name one on the command line");
    auto arguments = parse_io_arguments(words, command->letters);
    if (!arguments) {
      blame(arguments.error());
      return say(fmt::format("{} {} -- {}", command->name, command->usage, command->summary));
    }
    const std::size_t count = arguments->rest.size();
    if (count < command->least || count > command->most) {
      const char* at_least = command->letters[0] != '\0' ? "at least " : "";
      return blame(
          fmt::format("bad argument count {} to {}, expected {}", count, command->name,
                      at_least[0] != '\0' || command->least == command->most
                          ? fmt::format("{}{} arguments", at_least, command->least)
                          : fmt::format("between {} and {} arguments", command->least, command->most)));
    }
    return command->action == nullptr || (this->*command->action)(*arguments);
  };
  const Command* command = find(words[0]);
  if (!carry_out()) {
    failed_ = true;
    return Outcome::Failed;
  }
  return command != nullptr && command->action == nullptr ? Outcome::Quit : Outcome::Done;
}

}  // namespace spindle::image
