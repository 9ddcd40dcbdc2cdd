// `spindle img`: works with images that no guest uses, as qemu-img does. docs/img.md is the user's page.
#include "tools/image_tool.h"

namespace spindle::tools {

void fill_img_command(CLI::App& img, Action& action) {
  img.require_subcommand(1);
  img.add_option("-T,--trace", "Accepted for qemu-img's sake: there are no trace events here")
      ->type_name("EVENTS");
  add_img_bench(img, action);
  add_img_check(img, action);
  add_img_compact(img, action);
  add_img_compare(img, action);
  add_img_convert(img, action);
  add_img_create(img, action);
  add_img_dd(img, action);
  add_img_info(img, action);
  add_img_map(img, action);
  add_img_measure(img, action);
  add_img_resize(img, action);
}

void add_img_command(CLI::App& app, Action& action) {
  fill_img_command(*app.add_subcommand("img", "Make, look at, check and convert images, as qemu-img does"),
                   action);
}

}  // namespace spindle::tools
