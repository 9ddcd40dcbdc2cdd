#include "formats/vdi/register.h"

#include "block/parse.h"
#include "formats/vdi/check.h"
#include "formats/vdi/compact.h"
#include "formats/vdi/create.h"
#include "formats/vdi/vdi_node.h"

namespace spindle::vdi {
namespace {

Result<VdiNode::Options> parse(const FormatOptions& options, Mutations mutations) {
  VdiNode::Options parsed{.commit = {.mutation = mutations.commit}, .mutation = mutations.vdi};
  for (const auto& [key, value] : options) {
    if (key == "metadata-flush") {
      const auto policy = parse_commit_policy(value);
      if (!policy) return std::unexpected(bad_option(key, value, "ordered, eager or none"));
      parsed.commit.policy = *policy;
    } else if (key == "prealloc-ahead") {
      const auto bytes = parse_size(value);
      if (!bytes)
        return std::unexpected(bad_option(key, value, "a size in bytes, or with a suffix k, M, G or T"));
      parsed.prealloc_ahead = *bytes;
    } else {
      return std::unexpected(bad_option(key, value, "no option: vdi has metadata-flush and prealloc-ahead"));
    }
  }
  return parsed;
}

Task<Result<std::shared_ptr<Node>>> open(std::shared_ptr<Node> file, FormatOptions options,
                                         Mutations mutations) {
  const auto parsed = parse(options, mutations);
  if (!parsed) co_return std::unexpected(parsed.error());
  auto opening = VdiNode::open(std::move(file), *parsed);
  auto node = co_await opening;
  if (!node) co_return std::unexpected(std::move(node.error()));
  co_return std::shared_ptr<Node>(std::move(*node));
}

}  // namespace

Format format(Mutations mutations) {
  return {
      .name = "vdi",
      .option_keys = {"metadata-flush", "prealloc-ahead"},
      .grows = true,
      .open =
          [mutations](std::shared_ptr<Node> file, OpenOptions options) {
            return open(std::move(file), std::move(options.options), mutations);
          },
      .create = [](std::shared_ptr<Node> file, CreateOptions options) -> Task<Result<>> {
        co_return co_await create(*file, std::move(options));
      },
      .create_options = create_option_help(),
      .check = [mutation = mutations.vdi](std::shared_ptr<Node> file,
                                          Repair repair) -> Task<Result<CheckReport>> {
        return [](std::shared_ptr<Node> f, Repair r, Mutation m) -> Task<Result<CheckReport>> {
          co_return co_await check(*f, r, m);
        }(std::move(file), repair, mutation);
      },
      .compact = [mutation = mutations.vdi](std::shared_ptr<Node> file) -> Task<Result<CheckReport>> {
        return [](std::shared_ptr<Node> f, Mutation m) -> Task<Result<CheckReport>> {
          co_return co_await compact(*f, m);
        }(std::move(file), mutation);
      },
      .measure = measure,
      .probe = looks_like_vdi,
  };
}

}  // namespace spindle::vdi
