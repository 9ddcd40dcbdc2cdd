#include "tools/image_tool.h"

#include <fmt/format.h>

#include "block/disk_spec.h"
#include "block/io/reactor.h"
#include "formats/register_formats.h"
#include "image/output.h"
#include "tools/persona.h"
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
  add_objects(command, arguments.objects);
  if (force_share)
    command.add_flag("-U,--force-share", arguments.force_share, "Read it even if others are writing it");
}

void add_objects(CLI::App& command, std::vector<std::string>& objects) {
  command.add_option("--object", objects, "A secret, which other options may name; nothing here needs one")
      ->type_name("OBJECT")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
}

Result<> check_objects(const std::vector<std::string>& objects) {
  for (const std::string& object : objects) {
    const auto items = split_key_values(object);
    std::string type, id;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (items[i].key == "qom-type" || (i == 0 && !items[i].value))
        type = items[i].value.value_or(items[i].key);
      if (items[i].key == "id") id = items[i].value.value_or("");
    }
    if (type != "secret" && type != "secret_keyring") {
      return std::unexpected(Error::invalid(
          "--object " + object, "", fmt::format("there are no objects of the type \"{}\" here", type)));
    }
    if (id.empty())
      return std::unexpected(Error::invalid("--object " + object, "", "Parameter 'id' is missing"));
  }
  return {};
}

int tool_failed(const char* command, const std::string& text) {
  vmm::say(fmt::format("{}: {}", message_prefix(command), text));
  return kExitFailed;
}

int tool_failed(const char* command, const Error& error) {
  return tool_failed(command, error.message());
}

int open_failed(const char* command, const std::string& file, const Error& error) {
  if (error.operation != "open") return tool_failed(command, error);  // it is about an option
  Error named = error;
  named.operation = fmt::format("Could not open '{}'", file);
  named.node.clear();
  named.offset = 0;
  // The original says it twice, and scripts look for the whole line.
  if (named.detail.empty() && named.number != 0) named.operation += ": " + named.operation;
  return tool_failed(command, named);
}

int usage_failed(const char* command, const std::string& text) {
  const bool original = persona() != Persona::Spindle;
  const std::string name = message_prefix(command);
  vmm::say(original ? fmt::format("{}: {}\nTry '{} --help' for more information", name, text, name)
                    : fmt::format("{}: {}; see `{} --help`", name, text, name));
  return kExitFailed;
}

void tool_note(const char* command, const std::string& text) {
  vmm::say(fmt::format("{}: {}", message_prefix(command), text));
}

int run_image_tool(const char* command, bool quiet, const std::function<int(const image::Workshop&)>& work) {
  FormatRegistry formats;
  register_formats(formats);
  auto reactor = Reactor::create();
  if (!reactor) return tool_failed(command, *reactor.error());
  image::Notes notes;
  const int status = work({.reactor = **reactor, .formats = formats, .notes = notes});
  if (!quiet) {
    for (const std::string& note : notes) tool_note(command, note);
  }
  return status;
}

int run_image_tool(const char* command, bool quiet, const ImageArguments& image,
                   const std::function<int(const image::Workshop&)>& work) {
  if (const auto objects = check_objects(image.objects); !objects)
    return tool_failed(command, *objects.error());
  return run_image_tool(command, quiet, work);
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
