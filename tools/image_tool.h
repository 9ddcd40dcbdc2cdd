// What the subcommands of `spindle img` and `spindle io` share: how a run is set up and how it ends.
//
// Exit statuses are those of qemu-img and qemu-io: 0, or 1 for whatever went wrong, wrong options too (2
// would be a corrupt image as the status of a check).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "image/open_image.h"
#include "tools/command.h"

namespace spindle::tools {

/// The options that name an image: FILE, -f, --image-opts, --object, -U.
struct ImageArguments {
  std::string file;
  std::string format;
  std::vector<std::string> objects;
  bool options = false;
  bool force_share = false;

  image::ImageName name() const;
};
void add_image_arguments(CLI::App& command, ImageArguments& arguments, bool force_share);
/// --object, which names what other options may refer to.
void add_objects(CLI::App& command, std::vector<std::string>& objects);
/// What --object named. A secret is accepted, since no option here can use one; anything else is refused by
/// name, and so is a secret without an id.
Result<> check_objects(const std::vector<std::string>& objects);

/// Makes what a tool works with, runs `work` and prints the notes, unless `quiet`. `command` is what messages
/// begin with: "img info". Returns the exit status.
int run_image_tool(const char* command, bool quiet, const std::function<int(const image::Workshop&)>& work);

/// The same for a tool of one image, whose --object options are looked at first.
int run_image_tool(const char* command, bool quiet, const ImageArguments& image,
                   const std::function<int(const image::Workshop&)>& work);

/// One line on standard error. Returns kExitFailed.
int tool_failed(const char* command, const Error& error);
int tool_failed(const char* command, const std::string& text);
/// The same of an image that could not be opened, in qemu-img's words.
int open_failed(const char* command, const std::string& file, const Error& error);
/// What is wrong with the command line itself, found after it was parsed; says where there is help.
int usage_failed(const char* command, const std::string& text);
/// A line that is no failure.
void tool_note(const char* command, const std::string& text);

/// Prints the result of a tool; its exit status.
int print_result(const char* command, const std::string& text);

/// --output: true for json, false for human. Nothing, and a line on standard error, for anything else.
std::optional<bool> wants_json(const char* command, const std::string& output);

void add_img_bench(CLI::App& img, Action& action);
void add_img_check(CLI::App& img, Action& action);
void add_img_compact(CLI::App& img, Action& action);
void add_img_compare(CLI::App& img, Action& action);
void add_img_convert(CLI::App& img, Action& action);
void add_img_create(CLI::App& img, Action& action);
void add_img_dd(CLI::App& img, Action& action);
void add_img_info(CLI::App& img, Action& action);
void add_img_map(CLI::App& img, Action& action);
void add_img_measure(CLI::App& img, Action& action);
void add_img_resize(CLI::App& img, Action& action);

}  // namespace spindle::tools
