#include "formats/qcow2/register.h"

#include "block/parse.h"
#include "formats/qcow2/check.h"
#include "formats/qcow2/create.h"
#include "formats/qcow2/describe.h"
#include "formats/qcow2/qcow_node.h"

namespace spindle::qcow2 {
namespace {

Result<QcowNode::Options> parse(const FormatOptions& options, Mutations mutations) {
  QcowNode::Options parsed{.commit = {.mutation = mutations.commit}, .mutation = mutations.node};
  for (const auto& [key, value] : options) {
    if (key == "metadata-flush") {
      const auto policy = parse_commit_policy(value);
      if (!policy) return std::unexpected(bad_option(key, value, "ordered, eager or none"));
      parsed.commit.policy = *policy;
      continue;
    }
    if (key == "alloc-plan") {
      if (value == "ahead") {
        parsed.alloc_plan = AllocPlan::Ahead;
      } else if (value == "merge") {
        parsed.alloc_plan = AllocPlan::Merge;
      } else if (value == "auto") {
        parsed.alloc_plan = AllocPlan::Auto;
      } else {
        return std::unexpected(bad_option(key, value, "ahead, merge or auto"));
      }
      continue;
    }
    const auto bytes = parse_size(value);
    if (!bytes)
      return std::unexpected(bad_option(key, value, "a size in bytes, or with a suffix k, M, G or T"));
    if (key == "prealloc-ahead") {
      parsed.prealloc_ahead = *bytes;
    } else if (key == "l2-cache-size") {
      parsed.l2_cache = *bytes;
    } else if (key == "refcount-cache-size") {
      parsed.refcount_cache = *bytes;
    } else {
      return std::unexpected(bad_option(key, value,
                                        "no option: qcow2 has metadata-flush, prealloc-ahead, alloc-plan, "
                                        "l2-cache-size and refcount-cache-size"));
    }
  }
  return parsed;
}

Task<Result<std::shared_ptr<Node>>> open(std::shared_ptr<Node> file, OpenOptions options,
                                         Mutations mutations) {
  const auto parsed = parse(options.options, mutations);
  if (!parsed) co_return std::unexpected(parsed.error());
  auto opening = QcowNode::open(std::move(file), *parsed, options.others);
  auto node = co_await opening;
  if (!node) co_return std::unexpected(std::move(node.error()));
  co_return std::shared_ptr<Node>(std::move(*node));
}

}  // namespace

Format format(Mutations mutations) {
  return {
      .name = "qcow2",
      .option_keys = {"metadata-flush", "prealloc-ahead", "alloc-plan", "l2-cache-size",
                      "refcount-cache-size"},
      .grows = true,
      .open = [mutations](
                  std::shared_ptr<Node> file,
                  OpenOptions options) { return open(std::move(file), std::move(options), mutations); },
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
