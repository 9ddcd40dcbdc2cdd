#include "tools/image_tool.h"

#include <fmt/format.h>

#include "block/io/reactor.h"
#include "formats/register_formats.h"
#include "image/output.h"
#include "vmm/output.h"

namespace spindle::tools {

image::ImageName ImageArguments::name() const {
  image::ImageName name{.text = file, .options = options};
  if (!format.empty()) name.format = format;
  return name;
}

void add_image_arguments(CLI::App& command, ImageArguments& arguments, bool force_share) {
  command.add_option("FILE", arguments.file, "The image")->required();
  command.add_option("-f,--format", arguments.format, "Its format; found out if it is not given")
      ->type_name("FMT");
  command.add_flag("--image-opts", arguments.options,
                   "FILE is a list of options: driver=FMT,file.filename=F,...");
  if (force_share)
    command.add_flag("-U,--force-share", arguments.force_share, "Read it even if others are writing it");
}

int tool_failed(const char* command, const Error& error) {
  vmm::say(fmt::format("spindle {}: {}", command, error.message()));
  return kExitFailed;
}

int run_image_tool(const char* command, bool quiet, const std::function<int(const image::Workshop&)>& work) {
  FormatRegistry formats;
  register_formats(formats);
  auto reactor = Reactor::create();
  if (!reactor) return tool_failed(command, *reactor.error());
  image::Notes notes;
  const int status = work({.reactor = **reactor, .formats = formats, .notes = notes});
  if (!quiet) {
    for (const std::string& note : notes) vmm::say(fmt::format("spindle {}: {}", command, note));
  }
  return status;
}

int print_result(const char* command, const std::string& text) {
  const auto printed = image::put(text);
  return printed ? kExitOk : tool_failed(command, *printed.error());
}

std::optional<bool> wants_json(const char* command, const std::string& output) {
  if (output == "json") return true;
  if (output == "human") return false;
  tool_failed(command, Error::invalid("", "", "--output must be used with human or json as argument."));
  return std::nullopt;
}

}  // namespace spindle::tools
