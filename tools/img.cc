// `spindle img`: works with images that no guest uses, as qemu-img does. docs/img.md is the user's page.
#include "tools/image_tool.h"

namespace spindle::tools {

void add_img_command(CLI::App& app, Action& action) {
  CLI::App* img = app.add_subcommand("img", "Make, look at, check and convert images, as qemu-img does");
  img->require_subcommand(1);
  add_img_bench(*img, action);
  add_img_check(*img, action);
  add_img_compact(*img, action);
  add_img_convert(*img, action);
  add_img_create(*img, action);
  add_img_info(*img, action);
  add_img_map(*img, action);
}

}  // namespace spindle::tools
