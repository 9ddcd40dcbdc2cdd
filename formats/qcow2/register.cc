#include "formats/qcow2/register.h"

#include "formats/qcow2/check.h"
#include "formats/qcow2/create.h"
#include "formats/qcow2/describe.h"

namespace spindle::qcow2 {

Format format(Mutations mutations) {
  return {
      .name = "qcow2",
      .grows = true,
      .open = {},
      .create = [](std::shared_ptr<Node> file, CreateOptions options) -> Task<Result<>> {
        co_return co_await create(*file, std::move(options));
      },
      .create_options = create_option_help(),
      .check = [mutation = mutations.image](std::shared_ptr<Node> file,
                                            Repair repair) -> Task<Result<CheckReport>> {
        return [](std::shared_ptr<Node> f, Repair r, ImageMutation m) -> Task<Result<CheckReport>> {
          co_return co_await check(*f, r, m);
        }(std::move(file), repair, mutation);
      },
      .describe = [](std::shared_ptr<Node> file) -> Task<Result<ImageDescription>> {
        co_return co_await describe(*file);
      },
      .measure = measure,
      .probe = looks_like_qcow2,
  };
}

}  // namespace spindle::qcow2
